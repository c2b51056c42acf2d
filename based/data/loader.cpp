#include "based/data/loader.h"

#include <bit>

#include "based/core/random.h"

namespace based {

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
    : data_(std::move(data)), config_(config), rank_(rank), world_(world), windows_(0) {
  const auto refuse = [](const std::string& field, int64_t value, const std::string& wanted) {
    throw UsageError("data: " + field + " must be " + wanted + ", got " + std::to_string(value));
  };
  BASED_ASSERT(world >= 1 && rank >= 0 && rank < world);
  if (config.length < 1 || config.length > (int64_t{1} << 31)) refuse("length", config.length, "from 1 to 2^31");
  if (config.batch < 1 || config.batch > (int64_t{1} << 31) / config.length) refuse("batch", config.batch, "from 1 to 2^31 tokens in all");
  if (config.batch % world != 0) refuse("batch", config.batch, "a multiple of the " + std::to_string(world) + " devices");
  windows_ = (data_->tokens() - 1) / config.length;
  if (windows_ < 1) {
    throw Error("the data set has " + std::to_string(data_->tokens()) + " tokens: too few for one window of " +
                std::to_string(config.length) + " and the token after it");
  }
}

void Loader::seek(LoaderPosition position) {
  if (position.window < 0) throw Error("the position in the data is negative: " + std::to_string(position.window));
  position_ = position;
}

TokenBatch Loader::next() {
  TokenBatch batch = batch_at(position_);
  position_.window += config_.batch;
  return batch;
}

TokenBatch Loader::batch_at(LoaderPosition position) const {
  TokenBatch batch;
  batch.rows = config_.batch / world_;
  batch.length = config_.length;
  batch.cu_seqlens.push_back(0);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t number = position.window + rank_ * batch.rows + row, epoch = number / windows_;
    auto window = static_cast<uint64_t>(number % windows_);
    if (config_.shuffle) {
      window = Permutation(static_cast<uint64_t>(windows_), static_cast<uint64_t>(config_.seed), static_cast<uint64_t>(epoch))(window);
    }
    append_window(static_cast<int64_t>(window), batch);
  }
  return batch;
}

void Loader::append_window(int64_t window, TokenBatch& batch) const {
  const auto length = static_cast<size_t>(config_.length);
  const int64_t first = window * config_.length, row_start = batch.cu_seqlens.back();
  std::vector<int32_t> tokens(length + 1);
  data_->copy(first, tokens);
  batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
  batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
  batch.windows.push_back(window);
  if (config_.documents) {
    std::vector<int64_t> starts;
    data_->append_document_starts(first + 1, first + config_.length + 1, starts);
    for (const int64_t start : starts) {
      const int64_t end = row_start + start - first;  // the end of the previous document, as a position in the batch
      batch.targets[static_cast<size_t>(end - 1)] = kNoLabel;
      if (start < first + config_.length) batch.cu_seqlens.push_back(end);
    }
  }
  batch.cu_seqlens.push_back(row_start + config_.length);
}

}  // namespace based
