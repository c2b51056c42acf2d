// Cells of a sequence, for DecodeOptions::invariant: a sequence's bits depend on its tokens and the model alone, not on whether the tokens
// arrived at once, in pieces, from a saved state, or were generated.
//
// The parallel form and steps differ in rounding, and so does the parallel form of two pieces from that of both. So each token's form is
// fixed by its position. A sequence is cut into cells of cell_tokens() tokens. The state after a whole cell is computed by the parallel
// form from the state before it, by a call for this cell alone. The tokens after the last whole cell are read by steps, whether they were
// given or sampled. When they have become a whole cell, the state returns to the cell's begin, and the parallel form reads the cell.
//
// An engine therefore keeps the state at the begin of each slot's cell. A snapshot of a sequence (SequenceState) holds that state and all
// tokens; an engine that continues from a snapshot steps through the tokens after the cell's begin, fewer than a cell.
#pragma once
#include <string>
#include <vector>

#include "based/models/language_model.h"

namespace based {

// A CPU reads a shorter cell hardly faster by the parallel form than by steps, and a GPU needs many tokens to be busy.
constexpr int64_t cell_tokens(torch::DeviceType device) { return device == torch::kCUDA ? 512 : 64; }

// The cell's length, the type and the device, for example "64 tokens, F32, cpu". Besides model and tokens, the bits of a state depend on
// them.
std::string describe_cells(const LanguageModel& model);

// The state at the begin of each slot's cell. Tensors that grow are not copied: their time steps before the begin do not change, and the
// later ones are written again.
class CellBegins {
 public:
  explicit CellBegins(ModelState& state);  // `state` must outlive this

  void keep(int64_t slot);           // stores the slot's state: a cell begins there
  void restore(int64_t slot) const;  // sets the slot's state to the stored one
  // As ModelState::extract, but of the stored state, which has seen `tokens` tokens.
  ModelState extract(int64_t slot, int64_t tokens) const;
  int64_t bytes() const;

 private:
  ModelState& state_;
  std::vector<Tensor> kept_;  // copies of the state's tensors that do not grow, position last
};

}  // namespace based
