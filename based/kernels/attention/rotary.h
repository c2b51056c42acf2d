// Rotary positions of queries and keys.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// Rotates pairs (a, b) of the first `dim` dimensions of each head to (a cos − b sin, a sin + b cos), angle = position·base^(−2i/dim) for
// pair i; the other dimensions are copied. Angles are reduced in double, so they are exact to fp32 at any position.
struct Rotary {
  const void* x = nullptr;            // [tokens, heads, head_dim]
  void* y = nullptr;                  // [tokens, heads, head_dim]; may be x
  const int64_t* position = nullptr;  // [tokens]
  int64_t tokens = 0;
  int64_t x_stride = 0, y_stride = 0;  // elements from one token to the next
  int32_t heads = 0, head_dim = 64;
  int32_t dim = 64;  // even, at most head_dim and 256
  double base = 10000;
  bool interleaved = false;  // pairs (2i, 2i + 1) instead of (i, i + dim/2)
  bool inverse = false;      // rotate back: the gradient
  DType dtype = DType::f32;
};

namespace cpu {
Status rotary(const Rotary&);
}  // namespace cpu

namespace cuda {
Status rotary(const Rotary&, Queue);
}  // namespace cuda

struct RotaryLaunchers {
  Status (*rotate)(const Rotary&, Queue);
};

}  // namespace based::kernels
