// The published MQAR generator, draw for draw. std::mt19937 has the same seeding and output as numpy's legacy generator and torch's on the
// CPU.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <future>
#include <numeric>

#include "based/data/mqar.h"

namespace based {
namespace {

// The words of std::mt19937, generated in blocks by vectorised loops, which takes a fifth of the time. The data of a training need two
// billion.
class Words {
 public:
  explicit Words(uint32_t seed) {
    state_[0] = seed;
    for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253U * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
  uint32_t operator()() {
    if (at_ == kSize) next_block();
    return words_[at_++];
  }

 private:
  static constexpr uint32_t kSize = 624, kApart = 397;
  static uint32_t twist(uint32_t high, uint32_t low) {
    const uint32_t both = (high & 0x80000000U) | (low & 0x7fffffffU);
    return (both >> 1) ^ ((low & 1) * 0x9908b0dfU);
  }
  void next_block() {
    for (uint32_t i = 0; i < kSize - kApart; ++i) state_[i] = state_[i + kApart] ^ twist(state_[i], state_[i + 1]);
    for (uint32_t i = kSize - kApart; i < kSize - 1; ++i) state_[i] = state_[i + kApart - kSize] ^ twist(state_[i], state_[i + 1]);
    state_[kSize - 1] = state_[kApart - 1] ^ twist(state_[kSize - 1], state_[0]);
    for (uint32_t i = 0; i < kSize; ++i) {
      uint32_t word = state_[i];
      word ^= word >> 11, word ^= (word << 7) & 0x9d2c5680U, word ^= (word << 15) & 0xefc60000U;
      words_[i] = word ^ (word >> 18);
    }
    at_ = 0;
  }

  std::array<uint32_t, kSize> state_, words_;
  uint32_t at_ = kSize;
};

// The methods of numpy.random.RandomState, on its 32-bit words.
class LegacyNumpy {
 public:
  explicit LegacyNumpy(int64_t seed) : words_(static_cast<uint32_t>(seed)) {
    if (seed < 0 || seed > UINT32_MAX)
      throw UsageError("mqar: with compat 'zoology' the seed must be from 0 to 2^32-1, got " + std::to_string(seed));
  }

  // 0 .. most, by masked rejection sampling.
  uint32_t interval(uint32_t most) {
    if (most == 0) return 0;
    const uint32_t mask = std::bit_ceil(uint64_t{most} + 1) - 1;
    uint32_t value = words_() & mask;
    while (value > most) value = words_() & mask;
    return value;
  }

  double uniform() {
    const uint32_t high = words_() >> 5, low = words_() >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }

  // choice(n, count, replace=False): the head of a full permutation. All draws come before the exchanges, so that rejected draws need no
  // branch; one in four such branches would be mispredicted.
  std::vector<int32_t> choose(int32_t n, int64_t count) {
    const auto size = static_cast<uint32_t>(n);
    drawn_.resize(size), all_.resize(size);
    for (uint32_t i = size - 1; i > 0;) {
      const uint32_t mask = std::bit_ceil(i + 1) - 1, last = mask / 2;
      while (i > last) {
        const uint32_t value = words_() & mask;
        drawn_[i] = value, i -= value <= i;
      }
    }
    std::iota(all_.begin(), all_.end(), 0);
    for (uint32_t i = size - 1; i > 0; --i) std::swap(all_[i], all_[drawn_[i]]);
    return {all_.begin(), all_.begin() + count};
  }

  // choice(len(p), count, replace=False, p): rounds of draws, in which only the first draw of each value counts.
  std::vector<int64_t> choose_weighted(std::vector<double> p, int64_t count) {
    std::vector<int64_t> found;
    std::vector<double> cumulative(p.size());
    while (static_cast<int64_t>(found.size()) < count) {
      std::vector<double> draws(static_cast<size_t>(count) - found.size());
      for (double& x : draws) x = uniform();
      for (const int64_t index : found) p[static_cast<size_t>(index)] = 0;
      std::partial_sum(p.begin(), p.end(), cumulative.begin());
      const double total = cumulative.back();
      for (double& c : cumulative) c /= total;
      const size_t before = found.size();
      for (const double x : draws) {
        const int64_t index = std::upper_bound(cumulative.begin(), cumulative.end(), x) - cumulative.begin();
        const auto fresh = found.begin() + static_cast<std::ptrdiff_t>(before);
        if (std::find(fresh, found.end(), index) == found.end()) found.push_back(index);
      }
    }
    return found;
  }

 private:
  Words words_;
  std::vector<uint32_t> drawn_;
  std::vector<int32_t> all_;
};

std::vector<double> gap_probabilities(int64_t space, double power_a) {
  std::vector<double> p(static_cast<size_t>(space));
  for (size_t i = 0; i < p.size(); ++i) p[i] = power_a * std::pow(static_cast<double>(i + 1), power_a - 1);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& each : p) each /= total;
  return p;
}

// A segment without its fillers, which stay 0.
MqarData make_without_fillers(const MqarConfig& config) {
  check_mqar(config);
  if (config.power_a <= 0) throw UsageError("mqar: with compat 'zoology' power_a must be above 0");
  LegacyNumpy numpy(config.seed);
  const auto examples = static_cast<size_t>(config.examples), length = static_cast<size_t>(config.length);
  const auto pairs = static_cast<size_t>(config.pairs);
  const auto vocab = static_cast<int32_t>(config.vocab_size), half = vocab / 2;
  std::vector<std::vector<int32_t>> keys(examples), values(examples);
  for (auto& row : keys) row = numpy.choose(half - 1, config.pairs);
  for (auto& row : values) row = numpy.choose(vocab - half, config.pairs);
  const std::vector<double> probabilities = gap_probabilities((config.length - 2 * config.pairs) / 2, config.power_a);

  MqarData data{config.examples, config.length, std::vector<int32_t>(examples * length, 0), {}};
  data.labels.assign(examples * length, kNoLabel);
  for (size_t row = 0; row < examples; ++row) {
    const std::vector<int64_t> gaps = numpy.choose_weighted(probabilities, config.pairs);
    int32_t* inputs = data.inputs.data() + row * length;
    int32_t* labels = data.labels.data() + row * length;
    for (size_t i = 0; i < pairs; ++i) {
      const int32_t key = keys[row][i] + 1, value = values[row][i] + half;
      const size_t query = 2 * (pairs + static_cast<size_t>(gaps[i]));
      inputs[2 * i] = key;
      inputs[2 * i + 1] = value;
      inputs[query] = key;
      labels[query] = value;
    }
  }
  return data;
}

void fill(const MqarConfig& config, std::mt19937& fillers, MqarData& data) {
  if (!config.random_fillers) return;
  for (int32_t& token : data.inputs) {  // one word for every position, whether it is used or not
    const auto filler = static_cast<int32_t>(fillers() % static_cast<uint32_t>(config.vocab_size));
    if (token == 0) token = filler;
  }
}

}  // namespace

MqarData make_zoology_mqar(const MqarConfig& config, std::mt19937& fillers) {
  MqarData data = make_without_fillers(config);
  fill(config, fillers, data);
  return data;
}

ZoologySeeds zoology_segment_seeds(int64_t data_seed, int64_t train_segments, int64_t test_segments) {
  LegacyNumpy numpy(data_seed);
  ZoologySeeds seeds;
  for (int64_t i = 0; i < train_segments; ++i) seeds.train.push_back(numpy.interval(0x7fffffff));
  for (int64_t i = 0; i < test_segments; ++i) seeds.test.push_back((int64_t{1} << 31) + numpy.interval(0x7fffffff));
  return seeds;
}

MqarSegments make_zoology_segments(const std::vector<MqarConfig>& train, const std::vector<MqarConfig>& test, int64_t data_seed,
                                   int64_t filler_seed) {
  const ZoologySeeds seeds = zoology_segment_seeds(data_seed, static_cast<int64_t>(train.size()), static_cast<int64_t>(test.size()));
  // Generates the segments in parallel if threads can be started, each from its own seed, and then their fillers one after another.
  const auto begin = [](std::vector<MqarConfig> segments, const std::vector<int64_t>& segment_seeds) {
    std::vector<std::future<MqarData>> begun;
    for (size_t i = 0; i < segments.size(); ++i) {
      segments[i].seed = segment_seeds[i];
      begun.push_back(std::async(std::launch::async | std::launch::deferred, make_without_fillers, segments[i]));
    }
    return begun;
  };
  std::vector<std::future<MqarData>> train_segments = begin(train, seeds.train), test_segments = begin(test, seeds.test);
  std::mt19937 fillers(static_cast<uint32_t>(filler_seed));
  const auto end = [&fillers](const std::vector<MqarConfig>& segments, std::vector<std::future<MqarData>>& begun) {
    std::vector<MqarData> made;
    for (size_t i = 0; i < segments.size(); ++i) made.push_back(begun[i].get()), fill(segments[i], fillers, made.back());
    return made;
  };
  MqarSegments all;
  all.train = end(train, train_segments);
  all.test = end(test, test_segments);
  return all;
}

}  // namespace based
