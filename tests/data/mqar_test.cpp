#include "based/data/mqar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "based/core/json.h"
#include "based/core/safetensors.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/goldens.h"

namespace based {
namespace mqar_test {

using ::testing::HasSubstr;

std::vector<int32_t> int64_tensor(const TensorView& tensor) {
  std::vector<int64_t> wide(tensor.bytes.size() / 8);
  std::memcpy(wide.data(), tensor.bytes.data(), 8 * wide.size());
  return {wide.begin(), wide.end()};
}

MqarConfig config_of(const Json& json) {
  MqarConfig config;
  config.vocab_size = json["vocab_size"];
  config.length = json["input_seq_len"];
  config.pairs = json["num_kv_pairs"];
  config.examples = json["num_examples"];
  config.power_a = json["power_a"];
  config.seed = json["seed"];
  config.random_fillers = json["random_non_queries"];
  config.compat = "zoology";
  config.filler_seed = json["torch_seed"];
  return config;
}

void expect_golden(const std::string& path) {
  const SafetensorsFile file(path);
  const MqarData data = make_mqar(config_of(parse_json(file.metadata_at("config"), path)));
  EXPECT_EQ(data.inputs, int64_tensor(file.at("inputs"))) << path;
  EXPECT_EQ(data.labels, int64_tensor(file.at("labels"))) << path;
}

TEST(MqarZoology, EqualsTheFilesOfTheRepository) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(BASED_SOURCE_DIR) + "/tests/goldens")) {
    if (entry.path().filename().string().rfind("mqar_", 0) != 0) continue;
    expect_golden(entry.path());
    ++files;
  }
  EXPECT_EQ(files, 2);
}

TEST(MqarZoology, EqualsAllReferenceFiles) {
  const std::string folder = test::golden("mqar");
  BASED_NEEDS_FILE(folder);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    expect_golden(entry.path());
    ++files;
  }
  EXPECT_EQ(files, 18);
}

// numpy 2.4.6: np.random.seed(123); randint(0, 2**31, size=3); randint(2**31, 2**32, size=2).
TEST(MqarZoology, SegmentSeedsAreThoseOfNumpy) {
  const ZoologySeeds seeds = zoology_segment_seeds(123, 3, 2);
  EXPECT_EQ(seeds.train, (std::vector<int64_t>{843828734, 914636141, 1228959102}));
  EXPECT_EQ(seeds.test, (std::vector<int64_t>{3987752258, 3121803228}));
}

// Expected sums of entry · index (from 1), computed by the published code with numpy 2.4.6, its global generator of fillers seeded with 11.
TEST(MqarZoology, SegmentsOfATrainingFollowEachOther) {
  struct Segment {
    int64_t length, pairs, examples, inputs, labels;
    std::vector<int32_t> end;
  };
  const std::vector<Segment> train = {{64, 4, 5, 13123676, -3582727, {478, 231, 412, 261, 176, 233}},
                                      {32, 8, 3, 918716, 146697, {65, 182, 109, 103, 119, 212}},
                                      {64, 16, 4, 7325828, 1163283, {174, 229, 30, 29, 111, 358}}},
                             test = {{64, 8, 3, 4382186, -676244, {112, 312, 245, 445, 21, 417}},
                                     {128, 32, 2, 7053630, 1747305, {124, 216, 208, 305, 76, 498}}};
  const auto configs = [](const std::vector<Segment>& segments) {
    std::vector<MqarConfig> all;
    for (const Segment& one : segments)
      all.push_back({.vocab_size = 512, .length = one.length, .pairs = one.pairs, .examples = one.examples, .compat = "zoology"});
    return all;
  };
  const auto sum = [](const std::vector<int32_t>& entries) {
    int64_t total = 0;
    for (size_t i = 0; i < entries.size(); ++i) total += static_cast<int64_t>(i + 1) * entries[i];
    return total;
  };
  const MqarSegments all = make_zoology_segments(configs(train), configs(test), 7, 11);
  const auto expect_segments = [&](const std::vector<MqarData>& made, const std::vector<Segment>& wanted) {
    ASSERT_EQ(made.size(), wanted.size());
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_EQ(made[i].examples, wanted[i].examples);
      EXPECT_EQ(made[i].length, wanted[i].length);
      EXPECT_EQ(sum(made[i].inputs), wanted[i].inputs) << i;
      EXPECT_EQ(sum(made[i].labels), wanted[i].labels) << i;
      EXPECT_EQ(std::vector<int32_t>(made[i].inputs.end() - 6, made[i].inputs.end()), wanted[i].end) << i;
    }
  };
  expect_segments(all.train, train);
  expect_segments(all.test, test);
  EXPECT_THAT(message_of<UsageError>([] { make_zoology_segments({}, {{.pairs = 0}}, 7, 11); }), HasSubstr("pairs"));
}

void expect_valid(const MqarConfig& config, const MqarData& data) {
  const int64_t half = config.vocab_size / 2;
  ASSERT_EQ(static_cast<int64_t>(data.inputs.size()), config.examples * config.length);
  ASSERT_EQ(data.labels.size(), data.inputs.size());
  for (int64_t row = 0; row < config.examples; ++row) {
    const int32_t* inputs = data.inputs.data() + row * config.length;
    const int32_t* labels = data.labels.data() + row * config.length;
    std::map<int32_t, int32_t> value_of;
    std::set<int32_t> values;
    for (int64_t i = 0; i < config.pairs; ++i) {
      const int32_t key = inputs[2 * i], value = inputs[2 * i + 1];
      ASSERT_TRUE(key >= 1 && key < half && value >= half && value < config.vocab_size);
      ASSERT_TRUE(value_of.emplace(key, value).second) << "a key twice";
      ASSERT_TRUE(values.insert(value).second) << "a value twice";
    }
    std::set<int32_t> asked;
    for (int64_t t = 0; t < config.length; ++t) {
      if (labels[t] != kNoLabel) {
        ASSERT_GE(t, 2 * config.pairs);
        ASSERT_EQ(labels[t], value_of.at(inputs[t]));
        ASSERT_TRUE(asked.insert(inputs[t]).second);
      } else if (t >= 2 * config.pairs) {
        ASSERT_EQ(value_of.count(inputs[t]), 0u) << "a filler that is a key";
        ASSERT_TRUE(config.random_fillers || inputs[t] == 0);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(asked.size()), config.pairs);
  }
}

TEST(Mqar, EveryExampleKeepsTheRules) {
  for (const auto& [vocab, length, pairs] : std::vector<std::array<int64_t, 3>>{
           {8192, 64, 4}, {8192, 256, 64}, {8192, 1024, 256}, {32, 60, 15}, {33, 60, 15}, {16, 13, 3}, {4, 4, 1}, {1000, 100, 25}}) {
    for (const bool random_fillers : {true, false}) {
      const MqarConfig config{.vocab_size = vocab, .length = length, .pairs = pairs, .examples = 50, .random_fillers = random_fillers};
      expect_valid(config, make_mqar(config));
    }
  }
}

TEST(Mqar, AnExampleDependsOnSeedAndIndexOnly) {
  MqarConfig config{.vocab_size = 512, .length = 64, .pairs = 8, .examples = 40, .seed = 5};
  const MqarData many = make_mqar(config);
  std::vector<int32_t> inputs(64), labels(64);
  make_mqar_example(config, 33, inputs, labels);
  EXPECT_EQ(inputs, std::vector<int32_t>(many.inputs.begin() + 33 * 64, many.inputs.begin() + 34 * 64));
  EXPECT_EQ(labels, std::vector<int32_t>(many.labels.begin() + 33 * 64, many.labels.begin() + 34 * 64));
  config.examples = 10;
  const MqarData few = make_mqar(config);
  EXPECT_TRUE(std::equal(few.inputs.begin(), few.inputs.end(), many.inputs.begin()));
  config.seed = 6;
  EXPECT_NE(make_mqar(config).hash(), few.hash());
}

// Two unrelated examples agree at about one of a few thousand places, since there are 8,192 tokens.
TEST(Mqar, ExamplesOfNeighbouringSeedsAndIndicesAreUnrelated) {
  MqarConfig config;
  config.vocab_size = 8192, config.length = 256, config.pairs = 64, config.random_fillers = true;
  const auto example = [&](int64_t seed, int64_t index) {
    config.seed = seed;
    std::vector<int32_t> inputs(static_cast<size_t>(config.length)), labels(inputs.size());
    make_mqar_example(config, index, inputs, labels);
    return inputs;
  };
  for (int64_t ds = 0; ds <= 2; ++ds)
    for (int64_t di = ds == 0 ? 1 : -2; di <= 2; ++di) {
      int64_t equal = 0;
      for (int64_t index = 10; index < 20; ++index) {
        const std::vector<int32_t> one = example(3, index), other = example(3 + ds, index + di);
        for (size_t shift = 0; shift < 4; ++shift)
          for (size_t t = 0; t + shift < one.size(); ++t) equal += one[t] == other[t + shift] || one[t + shift] == other[t];
      }
      EXPECT_LT(equal, 40) << ds << ' ' << di;  // about 5 are expected by chance
    }
}

// Fixed values, so that a change of the generator is detected: earlier results would no longer be comparable.
TEST(Mqar, TheStreamOfTokensStaysTheSame) {
  const MqarConfig config{.vocab_size = 64, .length = 16, .pairs = 2, .examples = 1, .seed = 1};
  const MqarData data = make_mqar(config);
  EXPECT_EQ(data.inputs, (std::vector<int32_t>{7, 42, 23, 52, 23, 9, 47, 63, 7, 55, 34, 39, 47, 40, 11, 17}));
  EXPECT_EQ(make_mqar({.length = 256, .pairs = 32, .examples = 100, .seed = 9}).hash(), 3965540151109815089u);
}

// Compares the first gaps of many examples with their probabilities by a chi-squared test.
TEST(Mqar, GapsFollowThePowerLaw) {
  const MqarConfig config{.vocab_size = 64, .length = 34, .pairs = 1, .examples = 20000, .power_a = 0.01, .seed = 3};
  const MqarData data = make_mqar(config);
  std::vector<double> seen(16, 0), expected(16);
  for (int64_t row = 0; row < config.examples; ++row) {
    for (int64_t t = 0; t < config.length; ++t) {
      if (data.labels[static_cast<size_t>(row * config.length + t)] != kNoLabel) seen[static_cast<size_t>(t - 2) / 2] += 1;
    }
  }
  double total = 0, chi_squared = 0;
  for (size_t gap = 0; gap < 16; ++gap) total += expected[gap] = std::pow(gap + 1.0, -0.99);
  for (size_t gap = 0; gap < 16; ++gap) {
    const double mean = 20000 * expected[gap] / total;
    chi_squared += (seen[gap] - mean) * (seen[gap] - mean) / mean;
  }
  EXPECT_LT(chi_squared, 45) << "15 degrees of freedom: 45 is passed once in 10,000";
}

// Given the first of two gaps, the second follows the same weights without the first.
TEST(Mqar, GapsAreDrawnWithoutReplacement) {
  const MqarConfig config{.vocab_size = 64, .length = 10, .pairs = 2, .examples = 30000, .power_a = 0.01, .seed = 4};  // gaps 0, 1, 2
  const MqarData data = make_mqar(config);
  std::map<std::pair<int64_t, int64_t>, double> seen;
  for (int64_t row = 0; row < config.examples; ++row) {
    const int32_t* inputs = data.inputs.data() + row * config.length;
    std::array<int64_t, 2> gaps{};
    for (size_t pair = 0; pair < 2; ++pair) gaps[pair] = (std::find(inputs + 4, inputs + 10, inputs[2 * pair]) - inputs - 4) / 2;
    seen[{gaps[0], gaps[1]}] += 1.0 / 30000;
  }
  const double w[3] = {1, std::pow(2, -0.99), std::pow(3, -0.99)}, total = w[0] + w[1] + w[2];
  for (int64_t a = 0; a < 3; ++a) {
    for (int64_t b = 0; b < 3; ++b) {
      const double expected = a == b ? 0 : w[a] / total * w[b] / (total - w[a]);
      EXPECT_NEAR((seen[{a, b}]), expected, 0.012) << a << " " << b;
    }
  }
}

TEST(Mqar, FillersMayBeKeysWhenAsked) {
  const MqarConfig config{.vocab_size = 16, .length = 64, .pairs = 5, .examples = 20, .fillers_avoid_keys = false};
  const MqarData data = make_mqar(config);
  int keys = 0;
  for (int64_t row = 0; row < 20; ++row) {
    const int32_t* inputs = data.inputs.data() + row * 64;
    for (int64_t t = 10; t < 64; ++t) {
      if (data.labels[static_cast<size_t>(row * 64 + t)] != kNoLabel) continue;
      for (int64_t i = 0; i < 5; ++i) keys += inputs[t] == inputs[2 * i];
    }
  }
  EXPECT_GT(keys, 100);
}

TEST(Mqar, RefusesWhatDoesNotFit) {
  const auto refused = [](const MqarConfig& config) { return message_of<Error>([&] { make_mqar(config); }); };
  EXPECT_THAT(refused({.length = 64, .pairs = 17}), HasSubstr("pairs must be from 1 to a quarter of the length, 16, got 17"));
  EXPECT_THAT(refused({.pairs = 0}), HasSubstr("pairs"));
  EXPECT_THAT(refused({.vocab_size = 8, .length = 64, .pairs = 4}), HasSubstr("at most the 3 keys of the vocabulary"));
  EXPECT_THAT(refused({.vocab_size = 3}), HasSubstr("vocab_size"));
  EXPECT_THAT(refused({.length = -1}), HasSubstr("length"));
  EXPECT_THAT(refused({.examples = -1}), HasSubstr("examples"));
  EXPECT_THAT(refused({.examples = int64_t{1} << 60}), HasSubstr("examples"));
  EXPECT_THAT(refused({.power_a = std::nan("")}), HasSubstr("power_a"));
  EXPECT_THAT(refused({.compat = "other"}), HasSubstr("compat must be 'none' or 'zoology', got 'other'"));
  EXPECT_THAT(refused({.power_a = 0, .compat = "zoology"}), HasSubstr("power_a must be above 0"));
  EXPECT_THAT(refused({.seed = -1, .compat = "zoology"}), HasSubstr("seed must be from 0"));
}

}  // namespace mqar_test
}  // namespace based
