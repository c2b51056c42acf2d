#include "based/data/loader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>

#include "based/core/hash.h"
#include "based/core/random.h"
#include "based/core/text.h"
#include "based/data/dna.h"

namespace based {
namespace {

constexpr int64_t kMaxPlace = int64_t{1} << 62;  // leaves room for a batch after it

// The first of the ascending ranges that ends after `place`.
std::vector<WindowRange>::const_iterator range_after(const std::vector<WindowRange>& ranges, int64_t place) {
  return std::upper_bound(ranges.begin(), ranges.end(), place, [](int64_t value, const WindowRange& range) { return value < range.last; });
}

void check_reverse_complement(const LoaderConfig& config, bool dna) {
  if (!(config.reverse_complement >= 0 && config.reverse_complement <= 1))
    throw UsageError("data: reverse_complement must be a chance from 0 to 1, got " + std::to_string(config.reverse_complement));
  if (config.reverse_complement == 0) return;
  if (!dna) throw UsageError("data: reverse_complement needs data of the tokenizer 'dna'");
  if (config.documents) throw UsageError("data: reverse_complement and documents exclude each other: a reversed window has other ends");
}

// Throws if the set cannot be of rows of length + 1 tokens: by its size, and the starts of its middle and last documents.
void require_rows(const TokenDataset& data, int64_t length) {
  const int64_t row = length + 1, last = data.documents() - 1;
  if (data.documents() * row == data.tokens() && data.document_start(last / 2) == last / 2 * row && data.document_start(last) == last * row)
    return;
  throw Error(data.path() + ": rows: has " + std::to_string(data.documents()) + " documents of " + std::to_string(data.tokens()) +
              " tokens in all, which are no rows of " + std::to_string(row) + " tokens; `based dna rows --length " +
              std::to_string(length) + "` packs them");
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t seed, uint64_t stream) : size_(size), seed_(seed), stream_(stream) {
  BASED_ASSERT(size > 0);
  half_bits_ = (std::bit_width(size - 1) + 1) / 2;
}

uint64_t Permutation::operator()(uint64_t index) const {
  BASED_ASSERT(index < size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)};
  do {  // the network permutes the next power of 4 above size, so about every fourth iteration or more is in range
    uint64_t left = index >> half_bits_, right = index & mask;
    for (uint32_t round = 0; round < 8; ++round) {
      const auto words =
          philox4x32({static_cast<uint32_t>(right), round, static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)}, key);
      const uint64_t mixed = left ^ (words[0] & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

Loader::Loader(std::shared_ptr<const TokenDataset> data, const LoaderConfig& config, int64_t rank, int64_t world)
    : Loader(std::make_shared<TokenMixture>(std::vector<WeightedSet>{{std::move(data), 1}}), config, rank, world) {}

Loader::Loader(std::shared_ptr<const TokenMixture> data, const LoaderConfig& config, int64_t rank, int64_t world)
    : data_(std::move(data)), config_(config), rank_(rank), world_(world) {
  const auto refuse = [](const std::string& field, int64_t value, const std::string& wanted) {
    throw UsageError("data: " + field + " must be " + wanted + ", got " + std::to_string(value));
  };
  BASED_ASSERT(world >= 1 && rank >= 0 && rank < world);
  if (config.length < 1 || config.length > (int64_t{1} << 31)) refuse("length", config.length, "from 1 to 2^31");
  if (config.batch < 1 || config.batch > (int64_t{1} << 31) / config.length) refuse("batch", config.batch, "from 1 to 2^31 tokens in all");
  if (config.batch % world != 0) refuse("batch", config.batch, "a multiple of the " + std::to_string(world) + " devices");
  dna_ = data_->sets().front().data->tokenizer_hash() == dna_tokenizer_hash();
  check_reverse_complement(config, dna_);
  for (const WeightedSet& set : data_->sets()) {
    if (config.rows) require_rows(*set.data, config.length);
    const int64_t windows = config.rows ? set.data->documents() : (set.data->tokens() - 1) / config.length;
    if (windows < 1) {
      throw Error(set.data->path() + ": the data set has " + std::to_string(set.data->tokens()) + " tokens: too few for one window of " +
                  std::to_string(config.length) + " and the token after it");
    }
    first_window_.push_back(first_window_.back() + windows);
  }
  hash_ = initial_hash();
}

void Loader::skip(std::vector<WindowRange> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const WindowRange& a, const WindowRange& b) { return a.first < b.first; });
  std::vector<WindowRange> merged;
  for (const WindowRange& range : ranges) {
    if (range.first < 0 || range.last <= range.first || range.last > kMaxPlace) {
      throw UsageError("the windows to skip must be a range A..B with 0 <= A < B, got " + std::to_string(range.first) + ".." +
                       std::to_string(range.last));
    }
    if (!merged.empty() && range.first <= merged.back().last)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  skipped_ = std::move(merged);
}

LoaderPosition Loader::position() const { return {window_, order_hash()}; }

std::string Loader::order_hash() const { return hex(hash_); }

void Loader::seek(const LoaderPosition& position) {
  if (position.window < 0 || position.window > kMaxPlace)
    throw Error("the position in the data is negative or above 2^62: " + std::to_string(position.window));
  uint64_t hash = initial_hash();
  if (position.order_hash.empty()) {  // saved before positions had a hash, or written by hand
    for (int64_t place = 0; place < position.window; ++place) {
      const auto range = range_after(skipped_, place);
      if (range != skipped_.end() && range->first <= place)
        place = range->last - 1;
      else
        hash = hash_over(hash, {place});
    }
  } else {
    const char *const first = position.order_hash.data(), *const end = first + position.order_hash.size();
    const auto [stop, error] = std::from_chars(first, end, hash, 16);
    if (error != std::errc() || stop != end || position.order_hash.size() != 16)
      throw Error("the hash of the order of the data must be 16 hexadecimal digits, is " + in_quotes(position.order_hash));
  }
  window_ = position.window;
  hash_ = hash;
}

TokenBatch Loader::next() {
  const std::vector<int64_t> places = places_from(window_);
  TokenBatch batch = part_of(places);
  hash_ = hash_over(hash_, places);
  window_ = places.back() + 1;
  return batch;
}

TokenBatch Loader::batch_at(const LoaderPosition& position) const { return part_of(places_from(position.window)); }

int64_t Loader::step_labels(const LoaderPosition& position, int64_t batches) const {
  if (!config_.documents && !dna_) return batches * config_.batch * config_.length;
  int64_t labels = 0;
  int64_t place = position.window;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const std::vector<int64_t> places = places_from(place);
    for (const int64_t each : places) labels += labels_of(delivery_at(each));
    place = places.back() + 1;
  }
  return labels;
}

int64_t Loader::labels_of(const Delivery& delivery) const {
  if (dna_) {
    TokenBatch batch;
    batch.cu_seqlens.push_back(0);
    append_window(delivery, batch);
    return config_.length - std::count(batch.targets.begin(), batch.targets.end(), kNoLabel);
  }
  const Window window = find_window(delivery.window);
  return config_.length - window.data->count_document_starts(window.first + 1, window.first + config_.length + 1);
}

std::vector<int64_t> Loader::step_windows(const LoaderPosition& position, int64_t batches) const {
  std::vector<int64_t> windows;
  int64_t place = position.window;
  for (int64_t batch = 0; batch < batches; ++batch) {
    const std::vector<int64_t> places = places_from(place);
    for (const int64_t each : places) windows.push_back(delivery_at(each).window);
    place = places.back() + 1;
  }
  return windows;
}

std::vector<int64_t> Loader::places_from(int64_t first) const {
  std::vector<int64_t> places;
  places.reserve(static_cast<size_t>(config_.batch));
  auto range = range_after(skipped_, first);
  for (int64_t place = first; static_cast<int64_t>(places.size()) < config_.batch;) {
    if (range != skipped_.end() && range->first <= place) {
      place = range->last;
      ++range;
    } else {
      places.push_back(place++);
    }
  }
  return places;
}

Loader::Delivery Loader::delivery_at(int64_t place) const {
  const auto [set, index] = data_->place(place);
  const auto windows = static_cast<uint64_t>(first_window_[set + 1] - first_window_[set]);
  const uint64_t epoch = static_cast<uint64_t>(index) / windows;
  uint64_t window = static_cast<uint64_t>(index) % windows;
  // The upper bits of the stream tell the sets apart: sets of equal size have different orders.
  if (config_.shuffle) window = Permutation(windows, static_cast<uint64_t>(config_.seed), epoch ^ static_cast<uint64_t>(set) << 44)(window);
  return {first_window_[set] + static_cast<int64_t>(window), epoch};
}

Loader::Window Loader::find_window(int64_t number) const {
  const auto set = static_cast<size_t>(std::upper_bound(first_window_.begin(), first_window_.end(), number) - first_window_.begin()) - 1;
  return {data_->sets()[set].data.get(), (number - first_window_[set]) * (config_.length + (config_.rows ? 1 : 0))};
}

TokenBatch Loader::part_of(const std::vector<int64_t>& places) const {
  TokenBatch batch;
  batch.rows = config_.batch / world_;
  batch.length = config_.length;
  batch.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < batch.rows; ++row) append_window(delivery_at(places[static_cast<size_t>(rank_ * batch.rows + row)]), batch);
  return batch;
}

std::vector<int32_t> Loader::tokens_of(const Window& window, const Delivery& delivery) const {
  std::vector<int32_t> tokens(static_cast<size_t>(config_.length) + 1);
  window.data->copy(window.first, tokens);
  if (!dna_) return tokens;
  if (config_.reverse_complement > 0) {
    const uint64_t stream[] = {static_cast<uint64_t>(delivery.window), delivery.epoch};
    if (Random(static_cast<uint64_t>(config_.seed), xxh3_64(std::as_bytes(std::span(stream)))).uniform() < config_.reverse_complement)
      reverse_complement_ids(tokens);
  }
  hide_dna_gaps(tokens);
  return tokens;
}

void Loader::append_window(const Delivery& delivery, TokenBatch& batch) const {
  const Window window = find_window(delivery.window);
  const auto [data, first] = window;
  const int64_t row_start = batch.cu_seqlens.back();
  const std::vector<int32_t> tokens = tokens_of(window, delivery);
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
  batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
  if (dna_) std::replace(batch.targets.end() - config_.length, batch.targets.end(), int32_t{kDnaPad}, kNoLabel);
  batch.windows.push_back(delivery.window);
  if (config_.documents) {
    std::vector<int64_t> starts;
    data->append_document_starts(first + 1, first + config_.length + 1, starts);
    for (const int64_t start : starts) {
      const int64_t end = row_start + start - first;  // the end of the previous document, as a position in the batch
      batch.targets[static_cast<size_t>(end - 1)] = kNoLabel;
      if (start < first + config_.length) batch.cu_seqlens.push_back(end);
    }
  }
  batch.cu_seqlens.push_back(row_start + config_.length);
}

uint64_t Loader::initial_hash() const {
  const uint64_t parts[] = {data_->hash(), static_cast<uint64_t>(config_.length)};
  const uint64_t hash = xxh3_64(std::as_bytes(std::span(parts)));
  if (config_.reverse_complement == 0) return hash;
  const uint64_t drawn[] = {hash, static_cast<uint64_t>(config_.seed), std::bit_cast<uint64_t>(config_.reverse_complement)};
  return xxh3_64(std::as_bytes(std::span(drawn)));
}

uint64_t Loader::hash_over(uint64_t hash, const std::vector<int64_t>& places) const {
  for (const int64_t place : places) {
    const uint64_t parts[] = {hash, static_cast<uint64_t>(delivery_at(place).window)};
    hash = xxh3_64(std::as_bytes(std::span(parts)));
  }
  return hash;
}

}  // namespace based
