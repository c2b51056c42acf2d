// Reads prompts into the slots of a state by the model's parallel form, and prepares the steps that continue them: it loads the sampling
// parameters and input tokens of the decode step, and stores the state at the begin of each slot's cell (generate/cells.h).
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "based/generate/cells.h"
#include "based/generate/decode_step.h"
#include "based/generate/prompt_reader.h"
#include "based/generate/sequence_table.h"

namespace based {

class Prefill {
 public:
  using Sequence = SequenceTable::Sequence;

  // `begins`: of `state`, if prompts are read in cells. `padded_columns`: EngineOptions::padded_columns. All references must outlive this.
  Prefill(LanguageModel& model, SequenceTable& table, const PromptReader& reader, ModelState& state, DecodeStep& decode,
          std::optional<CellBegins> begins, bool padded_columns);

  // Reads zeros, in one slot and in all of them, so that a GPU loads its kernels and allocates its buffers before the first prompt comes.
  void warm_up(int64_t prefill_tokens);

  // Reads a piece as PromptReader::Read asks for it. Sequences whose prompts are complete begin to decode.
  void read(const PromptReader::Piece& piece);
  int64_t tokens_read() const { return tokens_read_; }  // by the parallel form, in total

  // The state of one slot in canonical form, in memory of its own, cut to `tokens` time steps where it grows.
  ModelState extract(int64_t slot, int64_t tokens);
  // The state of a sequence that has a slot, as a snapshot stores it: with cells, a decoding sequence's is that at the begin of its cell.
  ModelState snapshot(const Sequence& sequence);
  // Stores the snapshots of several sequences of one step in them. Not with cells. The states share memory, which is freed with the last.
  void keep_snapshots(const std::vector<Sequence*>& sequences);
  ModelState staged_snapshot() const { return staging_.extract(0); }

  // The functions below are for cells.
  int64_t cell_begins_bytes() const { return begins_ ? begins_->bytes() : 0; }
  // Called after a decoding sequence has received more tokens. False: steps read them. True: the sequence has to return to prefill, and its
  // slot has the state at the begin of its cell again, because the tokens complete the cell or because the cache has no room for them yet.
  bool restores_cell_begin(Sequence& sequence);
  // Called after each step of a sequence. If steps have read the last token of its cell, reads the whole cell again by the parallel form.
  void complete_cell(Sequence& sequence);
  // Loads the input tokens of the next step into these slots where the device does not have them: tokens that were given, not sampled.
  void load_input_tokens(const std::vector<int64_t>& slots);

 private:
  void read_together(const std::vector<int64_t>& ids, int64_t most_tokens);
  void read_staged(int64_t id, int64_t most_tokens);
  void read_pieces(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences, int64_t most_tokens);
  void read_piece(ModelState& state, const std::vector<int64_t>& slots, const std::vector<Sequence*>& sequences, int64_t most_tokens);
  void keep_scores(const Tensor& hidden, const std::vector<Sequence*>& sequences, const std::vector<int64_t>& tokens);
  void keep_top_scores(Sequence& sequence, const Tensor& hidden, const Tensor& tokens, const float* scores);
  void drop_unfinished_scores(Sequence& sequence) const;
  void score_tail(Sequence& sequence);
  void put_into_slots(const std::vector<Sequence*>& sequences);
  void insert(const ModelState& one, int64_t slot);
  void begin_decoding(const std::vector<Sequence*>& sequences);
  void load_last_tokens(const std::vector<Sequence*>& sequences);
  Tensor on_device(const std::vector<int64_t>& values) const;

  LanguageModel& model_;
  SequenceTable& table_;
  const PromptReader& reader_;
  ModelState& state_;
  DecodeStep& decode_;
  std::optional<CellBegins> begins_;
  int64_t cell_;  // tokens of a cell; 0: prompts are not read in cells
  bool padded_columns_;
  ModelState staging_;  // one slot, for a prompt that is read in pieces while steps write all slots of state_
  int64_t tokens_read_ = 0;
};

}  // namespace based
