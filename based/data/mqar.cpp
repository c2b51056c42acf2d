#include "based/data/mqar.h"

#include <algorithm>
#include <cmath>

#include "based/core/hash.h"
#include "based/core/random.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr uint64_t kMqarStreams = 0x6d71617200000000u;  // separates the streams from other uses of the same seed

// `count` distinct numbers from first .. last. They are marked in `taken`, which is indexed by number.
std::vector<int32_t> draw_distinct(Random& random, int64_t count, int64_t first, int64_t last, std::vector<bool>& taken) {
  std::vector<int32_t> drawn;
  while (static_cast<int64_t>(drawn.size()) < count) {
    const int64_t number = random.between(first, last);
    if (taken[static_cast<size_t>(number)]) continue;
    taken[static_cast<size_t>(number)] = true;
    drawn.push_back(static_cast<int32_t>(number));
  }
  return drawn;
}

// `count` gaps without replacement, in the order of drawing, by exponential clocks: each gap has a clock with rate (gap + 1)^(a - 1), and
// gaps are drawn in the order in which their clocks ring.
std::vector<int64_t> draw_gaps(Random& random, int64_t count, int64_t space, double power_a) {
  std::vector<std::pair<double, int64_t>> rings(static_cast<size_t>(space));
  for (int64_t gap = 0; gap < space; ++gap) {
    const double rate = std::pow(static_cast<double>(gap + 1), power_a - 1);
    rings[static_cast<size_t>(gap)] = {-std::log(1 - random.uniform()) / rate, gap};
  }
  std::partial_sort(rings.begin(), rings.begin() + count, rings.end());
  std::vector<int64_t> gaps;
  for (int64_t i = 0; i < count; ++i) gaps.push_back(rings[static_cast<size_t>(i)].second);
  return gaps;
}

}  // namespace

void check_mqar(const MqarConfig& c) {
  const auto refuse = [](const std::string& field, int64_t value, const std::string& wanted) {
    throw UsageError("mqar: " + field + " must be " + wanted + ", got " + std::to_string(value));
  };
  if (c.vocab_size < 4 || c.vocab_size > INT32_MAX) refuse("vocab_size", c.vocab_size, "from 4 to 2147483647");
  if (c.length < 4 || c.length > INT32_MAX) refuse("length", c.length, "from 4 to 2147483647");
  if (c.pairs < 1 || c.pairs > c.length / 4) refuse("pairs", c.pairs, "from 1 to a quarter of the length, " + std::to_string(c.length / 4));
  if (c.pairs > c.vocab_size / 2 - 1) {
    refuse("pairs", c.pairs, "at most the " + std::to_string(c.vocab_size / 2 - 1) + " keys of the vocabulary");
  }
  if (c.examples < 0 || c.examples > (int64_t{1} << 34) / c.length) refuse("examples", c.examples, "from 0 to 2^34 tokens in all");
  if (!std::isfinite(c.power_a) || std::abs(c.power_a) > 10) {
    throw UsageError("mqar: power_a must be from -10 to 10, got " + std::to_string(c.power_a));
  }
  if (c.compat != "none" && c.compat != "zoology") throw UsageError("mqar: compat must be 'none' or 'zoology', got " + in_quotes(c.compat));
}

uint64_t MqarData::hash() const {
  std::string content;
  content.reserve(8 * (inputs.size() + 2));
  const auto number = [&content](uint64_t value, int bytes) {
    for (int shift = 0; shift < 8 * bytes; shift += 8) content += static_cast<char>(value >> shift & 0xff);
  };
  number(static_cast<uint64_t>(examples), 8);
  number(static_cast<uint64_t>(length), 8);
  for (const auto* row : {&inputs, &labels}) {
    for (const int32_t token : *row) number(static_cast<uint32_t>(token), 4);
  }
  return xxh3_64(std::as_bytes(std::span(content)));
}

void make_mqar_example(const MqarConfig& config, int64_t index, std::span<int32_t> inputs, std::span<int32_t> labels) {
  BASED_ASSERT(static_cast<int64_t>(inputs.size()) == config.length && inputs.size() == labels.size());
  Random random(static_cast<uint64_t>(config.seed) ^ kMqarStreams, static_cast<uint64_t>(index));
  const int64_t pairs = config.pairs, half = config.vocab_size / 2;
  std::vector<bool> taken(static_cast<size_t>(config.vocab_size), false);
  const std::vector<int32_t> keys = draw_distinct(random, pairs, 1, half - 1, taken);
  const std::vector<int32_t> values = draw_distinct(random, pairs, half, config.vocab_size - 1, taken);
  const std::vector<int64_t> gaps = draw_gaps(random, pairs, (config.length - 2 * pairs) / 2, config.power_a);

  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(labels.begin(), labels.end(), kNoLabel);
  for (size_t i = 0; i < static_cast<size_t>(pairs); ++i) {
    const size_t query = static_cast<size_t>(2 * (pairs + gaps[i]));
    inputs[2 * i] = keys[i];
    inputs[2 * i + 1] = values[i];
    inputs[query] = keys[i];
    labels[query] = values[i];
  }
  if (!config.random_fillers) return;
  for (size_t t = static_cast<size_t>(2 * pairs); t < inputs.size(); ++t) {
    if (labels[t] != kNoLabel) continue;
    do {
      inputs[t] = static_cast<int32_t>(random.below(static_cast<uint64_t>(config.vocab_size)));
    } while (config.fillers_avoid_keys && inputs[t] < half && taken[static_cast<size_t>(inputs[t])]);
  }
}

MqarData make_mqar(const MqarConfig& config) {
  check_mqar(config);
  if (config.compat == "zoology") {
    std::mt19937 fillers(static_cast<uint32_t>(config.filler_seed < 0 ? config.seed : config.filler_seed));
    return make_zoology_mqar(config, fillers);
  }
  MqarData data{config.examples, config.length, {}, {}};
  const auto length = static_cast<size_t>(config.length);
  data.inputs.resize(static_cast<size_t>(config.examples) * length);
  data.labels.resize(data.inputs.size());
  for (int64_t i = 0; i < config.examples; ++i) {
    const size_t row = static_cast<size_t>(i) * length;
    make_mqar_example(config, i, std::span(data.inputs).subspan(row, length), std::span(data.labels).subspan(row, length));
  }
  return data;
}

}  // namespace based
