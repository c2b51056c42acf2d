// A counter-based random generator, the same on the host and on a GPU.
#pragma once
#include <cstdint>

#ifdef __CUDACC__
#define BASED_ON_BOTH __host__ __device__ inline
#else
#define BASED_ON_BOTH inline
#endif

namespace based::kernels {

// The increment of SplitMix64, 2^64 divided by the golden ratio: the outputs of mixed_bits at its multiples behave as independent random
// numbers.
inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15U;

// A permutation of 64 bits whose outputs look random (Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014).
BASED_ON_BOTH uint64_t mixed_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace based::kernels
