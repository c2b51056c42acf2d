// Rotary positions of queries and keys.
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

// Rotary positions in place, on the first `dim` dimensions (even, at most 256) of each of the first `heads` heads of x [tokens, columns];
// positions int64 [tokens]. Halves (a, b) -> (a cos − b sin, a sin + b cos), angle = position · base^(−2i/dim); interleaved: pairs
// (2i, 2i + 1) instead; inverse: rotated back. Returns x; the reference returns a copy. Differentiable.
struct Rotation {
  int64_t heads = 1, head_dim = 64, dim = 64;
  double base = 10000;
  bool interleaved = false, inverse = false;
};
Tensor rotary_(Tensor x, const Tensor& positions, const Rotation& rotation);
Tensor rotary_reference(const Tensor& x, const Tensor& positions, const Rotation& rotation);

// The operator.
struct Rotary {
  const Tensor& x;
  const Tensor& positions;
  Rotation rotation;
  BASED_OPERATOR("rotary_ -> ", written(x), positions, rotation.heads, rotation.head_dim, rotation.dim, rotation.base, rotation.interleaved,
                 rotation.inverse)
};

}  // namespace based::ops
