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
  std::mt19937 generator_;
};

}  // namespace based
