// A Mamba layer, as defined in the paper's appendix, that recalls N = n² bits exactly. Its state of d·n entries holds them, although d + n
// is only 4√N.
#pragma once
#include <cstdint>

#include "theory/index_protocol.h"

namespace based::theory {

struct MambaSizes {
  int64_t states;  // n, even; keys are pairs (a, b) of 0 … n-1
  int64_t keys() const { return states * states; }
  int64_t model_dim() const { return 3 * states; }  // d: the columns of a, of b, and of the value
  int64_t state_entries() const { return model_dim() * states; }
};

// A key (a, b) is embedded as the concatenation of e_a and e_b, a value x as n columns of x. In the value's channels, Δ (one per channel)
// is ½·e_b of the previous row; B̄ is e_a of the previous row; C is e_a of the query; the output row is gated by e_b of the query, as in a
// Mamba block. A is 2πJ, with J a rotation by a right angle in each plane of two states. Where Δ is 0, Ā = I and B̄ = 0. Where Δ is ½, Ā =
// exp(πJ) = -I and B̄ = A⁻¹(Ā - I)B = -2A⁻¹B, which the linear map of B takes into account. So |h[b, a]| becomes x, and every entry is -1,
// 0 or 1.
RecurrentMachine mamba_machine(const MambaSizes& sizes);

}  // namespace based::theory
