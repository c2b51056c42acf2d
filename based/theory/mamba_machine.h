// A Mamba layer, as the paper's appendix defines it, that recalls N = n² bits exactly: its state of d·n entries holds them, while d + n is
// 4√N.
#pragma once
#include <cstdint>

#include "based/theory/index_protocol.h"

namespace based::theory {

struct MambaSizes {
  int64_t states;  // n, even; keys are pairs (a, b) of 0 … n-1
  int64_t keys() const { return states * states; }
  int64_t model_dim() const { return 3 * states; }  // d: columns of a, of b, and of the value
  int64_t state_entries() const { return model_dim() * states; }
};

// Key (a, b) is embedded as e_a beside e_b, a value x as n columns of x. Δ, one for each channel, is ½·e_b of the row before, in the
// value's channels, B̄ is e_a of the row before, C is e_a of the query; the output row is gated by e_b of the query, as a Mamba block gates
// it. A is 2π times a rotation by a right angle in each plane of two states: where Δ is 0, Ā = I and B̄ = 0; where it is ½, Ā = exp(πJ) = -I
// and B̄ = A⁻¹(Ā - I)B = -2A⁻¹B, which is what B's linear map makes of it. So |h[b, a]| becomes x: every entry is -1, 0 or 1.
RecurrentMachine mamba_machine(const MambaSizes& sizes);

}  // namespace based::theory
