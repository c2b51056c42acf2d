// Decodes many sequences at once, in the slots of one state. Sequences can be added, forked, saved, restored and removed at any time, also
// while others are decoding; a sequence that finds no free slot waits for one. Prompts are read by the parallel form, in pieces of bounded
// memory between the steps of other sequences. A step then samples one token for every sequence whose prompt has been read.
//
// The work is divided: SequenceTable keeps the records of the sequences, PromptReader decides which prompts are read next, Prefill reads
// them, and Engine makes the steps and moves sequences between the phases.
//
// A sequence's tokens do not depend on the contents of other slots. Its bits do: on which prompts are read together, on how a prompt is cut
// into pieces, and on a GPU on the number of slots. If EngineOptions::decode.invariant is set, they only depend on the sequence's tokens
// and the model, on one machine: each prompt is read by itself, in cells (generate/cells.h).
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "based/generate/decode_step.h"
#include "based/generate/drafting.h"
#include "based/generate/prefill.h"
#include "based/generate/prompt_reader.h"
#include "based/generate/sequence.h"
#include "based/generate/sequence_table.h"

namespace based {

struct EngineOptions {
  int64_t slots = 1;
  // For models whose state grows (full attention): the tokens that all sequences together may have. Their keys and values are stored in the
  // pages of a pool of that size. A sequence takes pages as it grows and gives them back at its end; it waits until the space for all
  // tokens that it may have is free. 0: the cache grows with the sequences, and steps are plain.
  int64_t cache_tokens = 0;
  // Prompt tokens that are read between two steps; 0: 1024 on the CPU, 8192 on a GPU. Invariant engines read whole cells, at least one.
  int64_t prefill_tokens = 0;
  // Idle slots are counted at each step while sequences wait. Prompts are read once the count reaches max_idle_slot_steps x slots: reading
  // a few prompts costs a GPU as much as a few steps, so throughput is higher if several are read together. 0: they are read at once.
  int64_t max_idle_slot_steps = 0;
  // With max_idle_slot_steps: the steps that a prompt waits at most for others while a slot is free; 0: no limit. It bounds the time to the
  // first token where few sequences are decoded.
  int64_t max_deferred_steps = 0;
  // step() launches the next step before it waits for the tokens of this one, so that a GPU never waits for the host. A call that reads a
  // sequence's state or changes its tokens first waits for the step in flight; the next step() returns the token of that step. A sequence
  // that ends at a stop token has been stepped once too often. step() therefore waits first if a sequence that has stop tokens keeps its
  // state, and, where a step is one of all slots (DecodeStep::steps_all()), if one that keeps its state reaches max_tokens. With drafts
  // only one-row steps (DraftOptions::by_repetition) are launched ahead, within a block, because drafts follow the tokens before them.
  bool ahead = false;
  // The kept states of prompts that are only read (max_tokens = 0) and end in the same step share memory, which is freed with the last of
  // them: they are made by one copy of each tensor instead of one for each sequence. Without effect on invariant engines.
  bool joint_states = false;
  // SequenceOptions::scores and SequenceOptions::greedy count the padding rows of the embedding (LanguageModel::token_log_probabilities).
  bool padded_columns = false;
  DecodeOptions decode = {};
  // Each step also reads drafts of the next tokens, and step() returns all tokens up to the first one that differs from its draft. A
  // sequence's tokens, log-probabilities and states are, bit for bit, those of an engine without drafts. Without `invariant` this holds if
  // the same prompts are read together: drafts change the moments at which slots become free. On the CPU for up to
  // ops::kBatchInvariantRows slots, or any number with `invariant`. On a GPU for one slot, with DecodeOptions::fixed_rows: where not
  // drafts_keep_bits(), an engine without drafts has the same bits if it has that option, too. The constructor throws UsageError for other
  // options.
  DraftOptions drafts = {};
};

int64_t default_prefill_tokens(torch::Device device);

// Whether an engine gives a model with quantised weights full ones too (LanguageModel::use_full_weights): on a GPU, layers of several rows
// are slower with quantised weights, so that steps of several rows read full ones.
bool needs_full_weights(const EngineOptions& options, torch::Device device);

class Engine {
 public:
  // Throws UsageError for options out of range. If steps have several rows, a model with quantised weights on a GPU gets full ones
  // (LanguageModel::use_full_weights).
  Engine(LanguageModel& model, const EngineOptions& options);

  LanguageModel& model() const { return model_; }
  int64_t slots() const { return table_->slots(); }
  int64_t free_slots() const { return table_->free_slots(); }
  int64_t state_bytes() const;
  int64_t pending_bytes() const { return decode_->pending_bytes(); }      // part of state_bytes(): pending tokens (decode/pending.h)
  int64_t rounded_bytes() const { return decode_->rounded_bytes(); }      // part of pending_bytes(): rounded copies of states
  int64_t replaced_bytes() const { return decode_->replaced_bytes(); }    // part of the state that steps do not access (decode/pending.h)
  int64_t begins_bytes() const { return prefill_->cell_begins_bytes(); }  // part of state_bytes(): states at the begins of cells
  const ModelState& state() const { return state_; }
  // No sequence is waiting, prefilling or decoding, and step() has no output left to return.
  bool idle() const { return reader_->idle() && table_->decoding_count() == 0 && collected_.empty(); }

  // Returns the number of the new sequence. Throws Error for an empty sequence, for an id outside the vocabulary, and for a sequence that
  // never fits into the cache; UsageError for wrong options.
  int64_t add(std::vector<int64_t> tokens, const SequenceOptions& options);
  // Tokens that the state has not seen are read first. If this engine reads in cells and the state was made otherwise, all are read again.
  int64_t add(SequenceState saved, const SequenceOptions& options);
  int64_t fork(int64_t sequence, const SequenceOptions& options) { return add(snapshot(sequence), options); }
  // Appends tokens to a sequence that has not ended; they are read before the prompts of waiting sequences. Throws as add.
  void extend(int64_t sequence, const std::vector<int64_t>& more);
  void set_sampling(int64_t sequence, const SamplingOptions& sampling);  // from its next token on
  // Ends a sequence as if a stop token had been sampled. With drafts, step() may return several tokens of it; the sequence then is left as
  // if the last `unwanted` outputs of the last step() for it had not been sampled, even if it has ended with one of them.
  void end(int64_t sequence, int64_t unwanted = 0);
  void remove(int64_t sequence);  // in any phase; its number becomes invalid

  // A copy in canonical form. Taking it flushes the sequence's buffers, so that copy and original continue with the same bits. If prompts
  // are read in cells, the state is that at the begin of the sequence's cell. Throws Error for a sequence that has ended without
  // keep_state.
  SequenceState snapshot(int64_t sequence);
  // The kept state of a sequence that has ended with keep_state, without a copy; the engine does not have it afterwards. Throws Error if
  // there is none.
  SequenceState take_state(int64_t sequence);
  const std::vector<int64_t>& text(int64_t sequence) const { return table_->at(sequence).tokens; }
  Finish finish(int64_t sequence) const { return table_->at(sequence).finish; }
  // For SequenceOptions::scores: the log-probabilities of the sequence's tokens from `first_scored` on that the state has seen and
  // predicted. A sequence that was added with a state has scores only of the tokens after the first one that was read here. With cells, the
  // scores go up to the last token that was given.
  const std::vector<float>& scores(int64_t sequence) const { return table_->at(sequence).scores; }
  // For SequenceOptions::greedy: 1 for each scored token that is the most likely one, otherwise 0.
  const std::vector<uint8_t>& greedy(int64_t sequence) const { return table_->at(sequence).greedy; }
  // For SequenceOptions::scores and SequenceOptions::top_log_probabilities = K: the min(K, vocab_size) most likely tokens in the place of
  // the scored token number `index`, the most likely first. If the scored token is among them, its log-probability is that of scores().
  std::span<const TokenProbability> top_scores(int64_t sequence, size_t index) const;
  bool keeps_log_probabilities() const { return decode_->keeps_log_probabilities(); }

  struct Output {
    int64_t sequence = 0;
    int64_t token = -1;  // −1: the sequence ended before a token could be sampled
    // Under the model's softmax; 0 unless DecodeOptions::log_probabilities or SequenceOptions::top_log_probabilities is set.
    float log_probability = 0;
    Finish finish = Finish::none;
    // The min(top_log_probabilities, vocab_size) most likely tokens, the most likely first. If `token` is among them, its entry has exactly
    // `log_probability`.
    std::vector<TokenProbability> top = {};
  };
  // Reads up to prefill_tokens tokens of waiting prompts, and samples a token for every sequence whose prompt has been read. With cells, a
  // sequence that has tokens after its last whole cell reads one of them instead. A sequence that ends gives its slot to a waiting one; its
  // tokens stay until it is removed. With drafts, a sequence may have several outputs, one after another.
  const std::vector<Output>& step();
  // Reads all prompts for which there are slots, with cells as far as these are whole; calls `after_each` after each round.
  void read(const std::function<void()>& after_each = {});
  // Whether drafts leave the bits of a text as they are without drafts. Else they are those of steps with DecodeOptions::fixed_rows.
  bool drafts_keep_bits() const { return decode_->drafts_keep_bits(); }
  DraftCounts draft_counts() const { return drafting_ ? drafting_->counts() : DraftCounts(); }
  int64_t tokens_read() const { return prefill_->tokens_read(); }  // by the parallel form, in total
  // Makes steps without looking at their tokens, as if they were 0, for measurements. All prompts must have been read, and none ends.
  void run(int64_t steps);

 private:
  using Sequence = SequenceTable::Sequence;

  bool read_prompts();
  std::string cells() const { return reader_->cell() > 0 ? describe_cells(model_) : ""; }
  void keep_final_states();
  std::vector<int64_t> slots_to_step();
  void rewind_other_slots(const std::vector<int64_t>& slots);
  bool next_is_one_row();
  bool launch(bool one_row);
  void begin_step();
  void step_with_drafts();
  int64_t most_drafts(const Sequence& sequence) const;
  void take_back(int64_t id, Sequence& sequence, int64_t unwanted);
  void collect_oldest();
  void collect_all();
  bool restrict_next_token(Sequence& sequence);
  void take_token(Sequence& sequence, Output output);
  void finish_sequence(int64_t id, Sequence& sequence, Finish reason);

  LanguageModel& model_;
  ModelState state_;
  std::unique_ptr<SequenceTable> table_;
  std::unique_ptr<DecodeStep> decode_;
  std::unique_ptr<PromptReader> reader_;
  std::unique_ptr<Prefill> prefill_;
  std::unique_ptr<Drafting> drafting_;  // null: no drafts
  struct Drafted {
    int64_t slot = 0, seen = 0;  // the tokens that the state had read before the step
  };
  std::map<int64_t, Drafted> drafted_;  // the sequences of the last step with drafts
  bool ahead_, joint_states_;
  std::vector<Output> outputs_;    // returned by step()
  std::vector<Output> collected_;  // outputs that were collected between two calls of step(); the next call returns them
  // Slot and sequence of each token of the launched steps, oldest step first; at most DecodeStep::kReadbacks of them.
  std::deque<std::vector<std::pair<int64_t, int64_t>>> in_flight_;
};

}  // namespace based
