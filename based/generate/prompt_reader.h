// Chooses the prompts that are read next, their pieces and the budget. It runs no model: for each piece it calls a function that reads the
// piece (generate/prefill.h).
//
// Prompts are read in the order of a queue. In one round, between two decoding steps, at most `prefill_tokens` tokens are read. Prompts
// that fit into the budget as a whole are read together by one call of the parallel form. A longer prompt is read in pieces over several
// rounds, and goes to the end of the queue after each piece, so that no prompt waits for all of a longer one. In the staging state, only
// one prompt can be read at a time; its pieces alternate with rounds of shorter prompts. With cells (generate/cells.h), each prompt is read
// by itself and in whole cells, at least one a round.
#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "based/generate/sequence_table.h"

namespace based {

struct PromptReaderOptions {
  int64_t prefill_tokens = 1;       // tokens that a round may read
  int64_t cell = 0;                 // tokens of a cell; 0: pieces may have any length
  int64_t max_idle_slot_steps = 0;  // EngineOptions::max_idle_slot_steps
  int64_t max_deferred_steps = 0;   // EngineOptions::max_deferred_steps
  // Every step writes all slots. A prompt of several pieces then cannot be read in its slot, so it is read in a staging state, one such
  // prompt at a time.
  bool stages_long_prompts = false;
};

class PromptReader {
 public:
  struct Piece {
    std::vector<int64_t> ids;  // sequences that have slots; their tokens are read by one call
    int64_t most_tokens = 0;   // the limit for each sequence; with cells a multiple of the cell
    enum class Target { slots, new_staging_state, staging_state } target = Target::slots;
  };
  // Must read min(to_read(sequence), most_tokens) more tokens of each sequence and add them to Sequence::seen.
  using Read = std::function<void(const Piece&)>;

  // `table` must outlive this.
  PromptReader(SequenceTable& table, const PromptReaderOptions& options);

  void push_back(int64_t id) { waiting_.push_back(id); }
  void push_front(int64_t id) { waiting_.push_front(id); }
  void remove(int64_t id);  // a prefilling sequence that has finished
  bool idle() const { return waiting_.empty() && staged_id_ < 0; }
  int64_t staged_id() const { return staged_id_; }  // the sequence that is being read in the staging state, or −1

  int64_t cell() const { return options_.cell; }
  // Tokens of the prompt that the parallel form has still to read: all but the last one; with cells those of whole cells.
  int64_t to_read(const SequenceTable::Sequence& sequence) const;
  // Called once a step. True if this step's round is to be skipped so that later rounds read more prompts together: other sequences are
  // decoding, few slots have been idle so far, and no prompt has waited too long.
  bool defers_round();
  // Gives waiting sequences their slots and calls `read` for each piece of the round. False if no token was read.
  bool read_round(const Read& read);

 private:
  int64_t most_to_read(int64_t budget) const;
  std::optional<size_t> next(int64_t budget, int64_t whole_budget);
  void read_staged(Piece::Target target, int64_t most_tokens, const Read& read);

  SequenceTable& table_;
  PromptReaderOptions options_;
  bool isolate_prompts_;         // no two prompts are read by one call
  std::deque<int64_t> waiting_;  // sequences whose prompts are read next, in this order
  int64_t staged_id_ = -1;
  bool others_turn_ = false;     // the next round is for prompts that are not staged
  int64_t idle_slot_steps_ = 0;  // slots that were idle while sequences waited, summed over steps
  int64_t deferred_steps_ = 0;   // steps that deferred a prompt although a slot was idle
};

}  // namespace based
