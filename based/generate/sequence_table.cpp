#include "based/generate/sequence_table.h"

#include <utility>

#include "based/models/limits.h"

namespace based {

SequenceTable::SequenceTable(const ModelConfig& config, int64_t slots, std::optional<PagePool> pages)
    : config_(config), pages_(std::move(pages)), owners_(static_cast<size_t>(slots), -1) {}

// Checks the ids from `first_new` on, and the length. The last token needs no position until a step reads it.
void SequenceTable::check_tokens(const std::vector<int64_t>& tokens, size_t first_new) const {
  const auto count = static_cast<int64_t>(tokens.size());
  if (tokens.empty()) throw Error("generation needs at least one token of prompt");
  require_ids(config_, std::span(tokens).subspan(first_new), "the text");
  require_positions(config_, count - 1, "the text");
  if (pages_ && count - 1 > pages_->max_tokens())
    throw Error("a text of " + std::to_string(count) + " tokens, where the cache of all sequences has room for " +
                std::to_string(pages_->max_tokens()) + ": give it more tokens");
}

void SequenceTable::check_sampling(const SamplingOptions& sampling) const {
  check_sampling_options(sampling);
  for (const auto& [id, bias] : sampling.logit_bias) require_ids(config_, std::span(&id, 1), "logit_bias");
}

int64_t SequenceTable::add(Sequence sequence) {
  SequenceOptions& options = sequence.options;
  const auto tokens = static_cast<int64_t>(sequence.tokens.size());
  check_sampling(options.sampling);
  if (options.max_tokens < -1) throw UsageError("max_tokens must be -1 or more, got " + std::to_string(options.max_tokens));
  if (options.top_log_probabilities < 0 || options.top_log_probabilities > kMostTopLogProbabilities)
    throw UsageError("top_log_probabilities must be 0 to " + std::to_string(kMostTopLogProbabilities) + ", got " +
                     std::to_string(options.top_log_probabilities));
  if (options.first_generated < -1 || options.first_generated > tokens)
    throw UsageError("first_generated must be 0 to " + std::to_string(tokens) + ", the number of tokens, or -1; got " +
                     std::to_string(options.first_generated));
  if (options.first_generated < 0) options.first_generated = tokens;
  check_tokens(sequence.tokens, 0);
  sequences_.emplace(next_id_, std::move(sequence));
  return next_id_++;
}

void SequenceTable::append(Sequence& sequence, const std::vector<int64_t>& more) const {
  std::vector<int64_t> tokens = sequence.tokens;
  tokens.insert(tokens.end(), more.begin(), more.end());
  check_tokens(tokens, sequence.tokens.size());
  sequence.tokens = std::move(tokens);
  if (!more.empty()) sequence.options.first_generated = static_cast<int64_t>(sequence.tokens.size());
}

SequenceTable::Sequence* SequenceTable::find(int64_t id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : &found->second;
}

SequenceTable::Sequence& SequenceTable::require(int64_t id) {
  Sequence* const found = find(id);
  if (found == nullptr) throw Error("engine: no sequence " + std::to_string(id));
  return *found;
}

int64_t SequenceTable::free_slots() const { return std::count(owners_.begin(), owners_.end(), -1); }

bool SequenceTable::assign_slot(int64_t id) {
  Sequence& sequence = at(id);
  if (sequence.slot < 0 && free_slots() == 0) return false;
  const auto tokens = static_cast<int64_t>(sequence.tokens.size());
  const int64_t to_sample = std::max<int64_t>(1, sequence.options.max_tokens - sequence.sampled);
  // max_tokens may be as large as int64 allows: it is compared with the remaining space, not added.
  if (pages_ && !reserve(sequence, tokens - 1 + std::min(to_sample, pages_->max_tokens() - (tokens - 1)))) return false;
  if (sequence.slot < 0) {
    const auto free = std::find(owners_.begin(), owners_.end(), -1);
    sequence.slot = free - owners_.begin();
    *free = id;
  }
  if (pages_) pages_->hold(sequence.slot, tokens - 1);
  return true;
}

void SequenceTable::release_slot(Sequence& sequence) {
  if (sequence.slot < 0) return;
  owners_[static_cast<size_t>(sequence.slot)] = -1;
  if (pages_) pages_->release(sequence.slot);
  reserved_tokens_ -= std::exchange(sequence.reserved_tokens, 0);
  sequence.slot = -1;
}

bool SequenceTable::reserve(Sequence& sequence, int64_t tokens) {
  const int64_t more = tokens - sequence.reserved_tokens;
  if (reserved_tokens_ + more > pages_->max_tokens()) return false;
  reserved_tokens_ += more;
  sequence.reserved_tokens = tokens;
  return true;
}

void SequenceTable::begin_decoding(Sequence& sequence) {
  sequence.is_prefilling = false;
  ++decoding_count_;
}

void SequenceTable::return_to_prefill(Sequence& sequence) {
  sequence.is_prefilling = true;
  --decoding_count_;
}

void SequenceTable::finish(Sequence& sequence, Finish reason) {
  sequence.finish = reason;
  if (!sequence.is_prefilling) --decoding_count_;
  release_slot(sequence);
}

Finish SequenceTable::limit(Sequence& sequence, int64_t tokens) {
  const int64_t positions = config_.max_positions;
  if (positions > 0 && tokens > positions) return Finish::positions;
  if (pages_ && tokens > sequence.reserved_tokens && !reserve(sequence, tokens)) return Finish::cache_full;
  return Finish::none;
}

std::optional<Finish> SequenceTable::advance(Sequence& sequence, int64_t sampled_token) const {
  if (static_cast<size_t>(++sequence.seen) < sequence.tokens.size()) return {};
  if (sampled_token < 0) return Finish::not_finite;
  sequence.tokens.push_back(sampled_token);
  ++sequence.sampled;
  const auto& stops = sequence.options.stop_tokens;
  if (std::find(stops.begin(), stops.end(), sampled_token) != stops.end()) return Finish::stop;
  return sequence.sampled == sequence.options.max_tokens ? Finish::length : Finish::none;
}

void SequenceTable::upload_pages() {
  if (pages_) pages_->upload();
}

}  // namespace based
