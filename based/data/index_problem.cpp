#include "based/data/index_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "based/core/random.h"

namespace based {
namespace {

constexpr uint64_t kIndexStreams = 0x696e646578000000u;  // separates the streams from other uses of the same seed

// Shuffles a random choice of `count` elements to the front.
void draw_first(Random& random, std::vector<int32_t>& all, int64_t count) {
  const auto size = static_cast<int64_t>(all.size());
  for (int64_t i = 0; i < count; ++i) std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(random.between(i, size - 1))]);
}

}  // namespace

void check_index(const IndexConfig& c) {
  const auto refuse = [](const char* field, int64_t value, const std::string& wanted) {
    throw UsageError("index: " + std::string(field) + " must be " + wanted + ", got " + std::to_string(value));
  };
  if (c.bits < 1 || c.bits > (1 << 20)) refuse("bits", c.bits, "from 1 to 1048576");
  if (c.told < 1 || c.told > c.bits) refuse("told", c.told, "from 1 to the number of bits, " + std::to_string(c.bits));
  if (c.queries < 1 || c.queries > c.told) refuse("queries", c.queries, "from 1 to the number of bits told, " + std::to_string(c.told));
  if (c.examples < 0 || c.examples > (int64_t{1} << 34) / c.length()) refuse("examples", c.examples, "from 0 to 2^34 tokens in all");
}

MqarData make_index(const IndexConfig& config) {
  check_index(config);
  MqarData data{config.examples, config.length(), {}, {}};
  data.inputs.resize(static_cast<size_t>(config.examples * config.length()));
  data.labels.assign(data.inputs.size(), kNoLabel);
  std::vector<int32_t> indices(static_cast<size_t>(config.bits));
  for (int64_t example = 0; example < config.examples; ++example) {
    Random random(static_cast<uint64_t>(config.seed) ^ kIndexStreams, static_cast<uint64_t>(example));
    int32_t* input = data.inputs.data() + example * config.length();
    int32_t* label = data.labels.data() + example * config.length();
    std::iota(indices.begin(), indices.end(), 1);
    if (config.told < config.bits) draw_first(random, indices, config.told);
    std::sort(indices.begin(), indices.begin() + config.told);
    std::vector<int32_t> bit(static_cast<size_t>(config.bits + 1));
    for (int64_t i = 0; i < config.told; ++i) {
      const auto index = static_cast<size_t>(input[2 * i] = indices[static_cast<size_t>(i)]);
      input[2 * i + 1] = bit[index] = static_cast<int32_t>(config.bits + 1 + random.between(0, 1));
    }
    indices.resize(static_cast<size_t>(config.told));
    draw_first(random, indices, config.queries);
    for (int64_t query = 0; query < config.queries; ++query) {
      input[2 * config.told + query] = indices[static_cast<size_t>(query)];
      label[2 * config.told + query] = bit[static_cast<size_t>(indices[static_cast<size_t>(query)])];
    }
    indices.resize(static_cast<size_t>(config.bits));
  }
  return data;
}

double index_bound(double bits, double error) {
  BASED_ASSERT(error >= 0 && error <= 1);
  const auto term = [](double p) { return p > 0 ? -p * std::log2(p) : 0; };
  return bits * (1 - term(error) - term(1 - error));
}

double most_recall(double message_bits, double bits) {
  if (message_bits >= bits) return 1;
  double low = 0.5, high = 1;
  for (int step = 0; step < 60; ++step) {
    const double middle = (low + high) / 2;
    (index_bound(bits, 1 - middle) < message_bits ? low : high) = middle;
  }
  return high;
}

}  // namespace based
