#include "based/eval/tasks/python_random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <string>
#include <unordered_set>

#include "based/core/error.h"

namespace based {
namespace {

// Gives a Mersenne Twister the state that MT19937's init_by_array makes of a key of one word: CPython's seeding by an integer.
class InitByArray {
 public:
  using result_type = uint32_t;

  explicit InitByArray(uint32_t key) : key_(key) {}

  template <class Iterator>
  void generate(Iterator begin, Iterator end) const {
    constexpr size_t kSize = std::mt19937::state_size;
    BASED_ASSERT(static_cast<size_t>(end - begin) == kSize);
    std::array<uint32_t, kSize> state{};
    state[0] = 19650218;
    for (uint32_t i = 1; i < kSize; ++i) state[i] = 1812433253U * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
    size_t at = 1;
    const auto mix = [&](uint32_t factor, uint32_t added) {
      state[at] = (state[at] ^ ((state[at - 1] ^ (state[at - 1] >> 30)) * factor)) + added;
      if (++at == kSize) {
        state[0] = state[kSize - 1];
        at = 1;
      }
    };
    for (size_t i = 0; i < kSize; ++i) mix(1664525, key_);
    for (size_t i = 0; i + 1 < kSize; ++i) mix(1566083941, 0U - static_cast<uint32_t>(at));
    state[0] = 0x80000000U;
    std::copy(state.begin(), state.end(), begin);
  }

 private:
  uint32_t key_;
};

}  // namespace

PythonRandom::PythonRandom(uint32_t seed) {
  InitByArray state(seed);
  generator_.seed(state);
}

double PythonRandom::random() {
  const uint32_t high = bits(27), low = bits(26);
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

uint32_t PythonRandom::bits(int count) { return generator_() >> (32 - count); }

int64_t PythonRandom::below(int64_t bound) {
  BASED_ASSERT(bound > 0 && bound < int64_t{1} << 31);
  const int width = std::bit_width(static_cast<uint32_t>(bound));
  int64_t value = bits(width);
  while (value >= bound) value = bits(width);
  return value;
}

std::vector<int64_t> PythonRandom::sample(int64_t population, int64_t count) {
  BASED_ASSERT(count >= 0 && count <= population);
  // CPython copies the population if that is smaller than a set of the draws.
  int64_t set_size = 21;
  if (count > 5) {
    int64_t table = 1;
    while (table < 3 * count) table *= 4;
    set_size += table;
  }
  std::vector<int64_t> drawn;
  if (population <= set_size) {
    std::vector<int64_t> pool(static_cast<size_t>(population));
    std::iota(pool.begin(), pool.end(), int64_t{0});
    for (int64_t i = 0; i < count; ++i) {
      const auto j = static_cast<size_t>(below(population - i));
      drawn.push_back(pool[j]);
      pool[j] = pool[static_cast<size_t>(population - i - 1)];
    }
    return drawn;
  }
  std::unordered_set<int64_t> seen;
  while (std::ssize(drawn) < count) {
    const int64_t index = below(population);
    if (seen.insert(index).second) drawn.push_back(index);
  }
  return drawn;
}

}  // namespace based
