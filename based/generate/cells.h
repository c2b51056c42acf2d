// Cells of a sequence, for DecodeOptions::invariant: a sequence's bits depend on its tokens and the model alone, not on whether the tokens
// arrived at once, in pieces, from a saved state, or were generated.
//
// The parallel form and steps differ in rounding, and so does the parallel form of two pieces from that of both. So each token's form is
// fixed by its position. A text is cut into cells of cell_tokens() tokens. The state after a whole cell is computed by the parallel form
// from the state before it, by a call for this cell alone. The tokens after the last whole cell are read by steps, whether they were given
// or drawn. When they have become a whole cell, the state goes back to the cell's begin, and the parallel form reads the cell.
//
// An engine therefore keeps the state at the begin of each slot's cell. A snapshot of a sequence (SequenceState) holds that state and all
// tokens; an engine that continues from a snapshot steps through the tokens after the cell's begin, fewer than a cell.
#pragma once
#include <string>
#include <vector>

#include "based/models/language_model.h"

namespace based {

// A CPU reads fewer tokens than these almost as fast one by one, and a GPU needs many to be busy.
constexpr int64_t cell_tokens(torch::DeviceType device) { return device == torch::kCUDA ? 512 : 64; }

// The cell's length, the type and the device, on which the bits of a state depend besides model and tokens: "64 tokens, F32, cpu".
std::string describe_cells(const LanguageModel& model);

// The state at the begin of each slot's cell. Of tensors that grow nothing is copied: their time steps before the begin stay as they are,
// and those from there on are written again.
class CellBegins {
 public:
  explicit CellBegins(ModelState& state);  // one of that shape; it must outlive this

  void keep(int64_t slot);           // a cell begins at the slot's state
  void restore(int64_t slot) const;  // the reverse
  // As ModelState::extract, of the begin. `tokens`: how many it has seen.
  ModelState extract(int64_t slot, int64_t tokens) const;
  int64_t bytes() const;

 private:
  ModelState& state_;
  std::vector<Tensor> kept_;  // those of the state that do not grow, position last
};

}  // namespace based
