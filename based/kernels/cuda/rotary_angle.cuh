// Angles of rotary positions: in double up to the last turn, since a position of 100,000 in fp32 leaves an angle only 3 right digits.
#pragma once
#include <cstdint>

namespace based::kernels::cuda::detail {

// Of pair i: base^(−2i/dim).
__device__ __forceinline__ double rotary_frequency(int pair, int dim, double base) { return exp2(-2.0 * pair / dim * log2(base)); }

// Cosine, sine.
__device__ __forceinline__ float2 rotary_turn(int64_t position, double frequency) {
  constexpr double kTurn = 6.283185307179586476925;
  const double angle = static_cast<double>(position) * frequency;
  float2 turn;
  sincosf(static_cast<float>(angle - kTurn * rint(angle / kTurn)), &turn.y, &turn.x);
  return turn;
}

}  // namespace based::kernels::cuda::detail
