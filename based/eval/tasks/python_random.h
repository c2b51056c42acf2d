// CPython's random.Random with an integer seed (MT19937), whose draws lm-eval uses for few-shot examples and bootstrap resamples.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

namespace based {

class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);  // random.Random(seed)

  uint32_t bits(int count);      // getrandbits(count), 1 to 32 bits
  double random();               // 53 bits, [0, 1)
  int64_t below(int64_t bound);  // _randbelow(bound); 0 < bound < 2^31
  // sample(range(population), count): distinct indices. Throws UsageError if `count` exceeds `population`.
  std::vector<int64_t> sample(int64_t population, int64_t count);

 private:
  // std::mt19937 with words of 32 bits. Its own words have 64 in libstdc++, and a draw takes five times as long.
  using Generator =
      std::mersenne_twister_engine<uint32_t, 32, 624, 397, 31, 0x9908b0df, 11, 0xffffffff, 7, 0x9d2c5680, 15, 0xefc60000, 18, 1812433253>;
  Generator generator_;
};

}  // namespace based
