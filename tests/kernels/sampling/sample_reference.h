// The Gumbel number of a word in extended precision, from the published SplitMix64, independent of kernels/sampling/sampling.h.
#pragma once
#include <cmath>
#include <cstdint>

namespace based::tests {

// The output of SplitMix64 that follows the state `x`.
inline uint64_t splitmix64(uint64_t x) {
  uint64_t z = x + 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

inline long double exact_gumbel(uint64_t bits) {
  const long double v = (static_cast<long double>(bits) + 0.5L) * 0x1p-64L;
  return -std::log(-std::log1p(-v));
}

// A row's stream starts at SplitMix64(SplitMix64(seed) + position); word w uses output number w.
inline long double exact_gumbel(uint64_t seed, uint64_t position, uint64_t word) {
  const uint64_t key = splitmix64(splitmix64(seed) + position);
  return exact_gumbel(splitmix64(key + (word - 1) * 0x9e3779b97f4a7c15ULL));
}

}  // namespace based::tests
