// Rotary angles. They are computed in double and reduced modulo 2π, since in fp32 a position of 100,000 leaves only 3 correct digits.
#pragma once
#include <cstdint>

namespace based::kernels::cuda::detail {

// Angle per position of pair i: base^(−2i/dim).
__device__ __forceinline__ double rotary_frequency(int pair, int dim, double base) { return exp2(-2.0 * pair / dim * log2(base)); }

// {cosine, sine} of the angle of `position`.
__device__ __forceinline__ float2 rotary_turn(int64_t position, double frequency) {
  constexpr double kTurn = 6.283185307179586476925;
  const double angle = static_cast<double>(position) * frequency;
  float2 turn;
  sincosf(static_cast<float>(angle - kTurn * rint(angle / kTurn)), &turn.y, &turn.x);
  return turn;
}

}  // namespace based::kernels::cuda::detail
