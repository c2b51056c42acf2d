// The sequences of an engine: their options, tokens and results, the slots they own, and the cache space reserved for them. The table only
// keeps records. It runs no model and moves no state; the engine and the prefill do that and record the result here.
//
// A sequence is in one of three phases. While it is prefilling, the parallel form still has to read part of its prompt. While it is
// decoding, each step reads one token. Once it has finished, it has no slot, and its tokens and scores stay until it is erased.
#pragma once
#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "based/generate/pages.h"
#include "based/generate/sequence.h"

namespace based {

class SequenceTable {
 public:
  struct Sequence {
    SequenceOptions options;
    std::vector<int64_t> tokens;
    std::vector<float> scores;                 // log-probabilities of prompt tokens (SequenceOptions::scores)
    std::vector<uint8_t> greedy;               // whether each of them is the most likely one (SequenceOptions::greedy)
    std::vector<TokenProbability> top_scores;  // the most likely tokens in place of each of them (SequenceOptions::top_log_probabilities)
    std::optional<ModelState> state;           // while the sequence has no slot; absent: no token has been read
    int64_t seen = 0;                          // tokens that the state has read
    int64_t sampled = 0;                       // tokens that steps have added to `tokens`
    int64_t slot = -1;                         // −1: none
    int64_t steps_in_flight = 0;               // steps that have been launched and whose tokens have not been collected
    int64_t reserved_tokens = 0;               // cache space that the sequence may fill
    // Only used when prompts are read in cells (generate/cells.h).
    int64_t cell_begin = 0;          // tokens before the sequence's current cell
    int64_t first_read = 0;          // tokens that a restored state had read before the sequence was added
    bool needs_input_token = false;  // the token that the next step reads is not on the device yet
    bool is_prefilling = true;       // the parallel form has to read tokens before the last one
    Finish finish = Finish::none;

    int64_t unread() const { return static_cast<int64_t>(tokens.size()) - 1 - seen; }  // the last token is read by a step
    // The tokens that the presence and frequency penalties count (SequenceOptions::first_generated).
    std::span<const int64_t> generated() const { return std::span(tokens).subspan(static_cast<size_t>(options.first_generated)); }
    int64_t samples_in_flight() const { return std::clamp<int64_t>(steps_in_flight - unread(), 0, steps_in_flight); }
  };

  // `config`: the model's limits, which sequences are checked against; it must outlive the table. `pages`: the page pool of a state that
  // grows, which then limits how many tokens all sequences together may have.
  SequenceTable(const ModelConfig& config, int64_t slots, std::optional<PagePool> pages);

  // Adds a prefilling sequence without a slot and returns its number. Throws UsageError for wrong options. Throws Error if the sequence is
  // empty, has an id outside the vocabulary, or is longer than the model's positions or the whole cache.
  int64_t add(Sequence sequence);
  // Throws UsageError for options out of range and Error for a biased token outside the vocabulary.
  void check_sampling(const SamplingOptions& sampling) const;
  // Throws the same errors, and then leaves the sequence as it was.
  void append(Sequence& sequence, const std::vector<int64_t>& more) const;
  void erase(int64_t id) { sequences_.erase(id); }  // the sequence must have finished

  Sequence& at(int64_t id) { return sequences_.at(id); }
  const Sequence& at(int64_t id) const { return sequences_.at(id); }
  Sequence& require(int64_t id);  // throws Error if there is no such sequence
  Sequence* find(int64_t id);     // null if there is no such sequence

  int64_t slots() const { return static_cast<int64_t>(owners_.size()); }
  int64_t free_slots() const;
  int64_t owner(int64_t slot) const { return owners_[static_cast<size_t>(slot)]; }  // the number of a sequence, or −1
  // Gives a prefilling sequence a slot, unless it has one, and reserves cache space for all tokens that it may have. False if no slot or
  // not enough space is free; the sequence then has to wait.
  bool assign_slot(int64_t id);
  void release_slot(Sequence& sequence);  // and its cache space; no effect on a sequence without a slot
  // Raises the sequence's reservation to `tokens`. False, and nothing is reserved, if the cache has no room. Needs pages.
  bool reserve(Sequence& sequence, int64_t tokens);

  int64_t decoding_count() const { return decoding_count_; }
  void begin_decoding(Sequence& sequence);
  void return_to_prefill(Sequence& sequence);
  void finish(Sequence& sequence, Finish reason);

  // Why the sequence cannot have `tokens` tokens read, or Finish::none; in that case cache space for them is reserved.
  Finish limit(Sequence& sequence, int64_t tokens);
  // Records that a step has read one more token of the sequence and sampled `sampled_token` (−1: the logits were not finite). Returns
  // nothing if the next token is known already, so that the sampled one is dropped. Otherwise appends the token and returns why the
  // sequence ends with it, or Finish::none.
  std::optional<Finish> advance(Sequence& sequence, int64_t sampled_token) const;

  // The page pool, or null.
  PagePool* pages() { return pages_ ? &*pages_ : nullptr; }
  const PagePool* pages() const { return pages_ ? &*pages_ : nullptr; }
  void upload_pages();  // see PagePool::upload; no effect without pages

 private:
  void check_tokens(const std::vector<int64_t>& tokens, size_t first_new) const;

  const ModelConfig& config_;
  std::optional<PagePool> pages_;
  std::map<int64_t, Sequence> sequences_;
  std::vector<int64_t> owners_;
  int64_t next_id_ = 0, decoding_count_ = 0, reserved_tokens_ = 0;
};

}  // namespace based
