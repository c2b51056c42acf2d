// Multi-query associative recall (paper, section 3; MQAR): a sequence of key-value pairs, followed by the same keys among fillers. At each
// repeated key the model must predict the value that followed the key before. Vocabulary V: token 0 is the plain filler, keys are 1 ..
// V/2-1, values V/2 .. V-1.
//
// One example with V = 16, length = 14, pairs = 3, as inputs and labels (-100: nothing to predict):
//
//   position   0   1   2   3   4   5     6     7    8     9   10    11   12   13
//   input      5  11   2   8   7  14     2     6    5    13    3     4    7    1
//   label   -100 ...................     8  -100   11  -100 -100 -100   14 -100
//              \___/   \___/   \___/     |          |                    |
//              key 5, value 11  ...      key 2      key 5                key 7, query of the third pair
//
// Queries are at positions 2·pairs + 2·gap. The gaps are distinct numbers from 0 .. (length - 2·pairs)/2 - 1, drawn with probability
// proportional to (gap + 1)^(power_a - 1), so that most gaps are small. The label is at the position of the query: it is the token that the
// model should predict there. The input after a query is a filler, not the answer. All other positions are fillers, here 6 13 3 4 1, and
// none of them is a key of the example.
//
// Example i is drawn from stream i of the seed only: it does not depend on the number of examples, nor on model, threads or device. The
// order of the draws is keys, values (both distinct), gaps, fillers.
#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "based/core/error.h"
#include "based/data/labels.h"

namespace based {

// The version of the examples: incremented when the examples of a config change. Stored results contain it.
inline constexpr int64_t mqar_version = 1;

struct MqarConfig {
  int64_t vocab_size = 8192;
  int64_t length = 64;
  int64_t pairs = 4;
  int64_t examples = 1000;
  double power_a = 0.01;
  int64_t seed = 0;
  bool random_fillers = true;
  bool fillers_avoid_keys = true;
  std::string compat = "none";
  int64_t filler_seed = -1;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("vocab_size", vocab_size, "tokens: 0 is the filler, keys are below vocab_size/2, values from there");
    field("length", length, "tokens per example");
    field("pairs", pairs, "key-value pairs per example, each queried once");
    field("examples", examples, "number of examples");
    field("power_a", power_a, "exponent a of the gaps' probability, proportional to (gap + 1)^(a - 1)");
    field("seed", seed, "seed of the data");
    field("random_fillers", random_fillers, "random tokens between the queries; otherwise token 0");
    field("fillers_avoid_keys", fillers_avoid_keys, "no random filler is a key of its example");
    field("compat", compat, "'zoology': the published generator, bit for bit (its fillers may be keys); 'none': this library's");
    field("filler_seed", filler_seed, "zoology only: seed of the fillers' generator; -1: seed");
  }
};

struct MqarData {
  int64_t examples = 0, length = 0;
  std::vector<int32_t> inputs, labels;  // [examples, length]

  uint64_t hash() const;  // covers sizes, inputs and labels; the same on every platform
};

// Throws UsageError that names an invalid field.
void check_mqar(const MqarConfig& config);

// All examples of a config that passed check_mqar.
MqarData make_mqar(const MqarConfig& config);

// Writes example `index` of a checked config with compat 'none' into `inputs` [length] and `labels` [length].
void make_mqar_example(const MqarConfig& config, int64_t index, std::span<int32_t> inputs, std::span<int32_t> labels);

// The published generator. It draws from numpy's legacy MT19937, except for the fillers, which come from `fillers`. In the published code
// that is torch's global generator, seeded once per run, so that it continues from one segment to the next. Fillers may be keys of their
// example, without a label.
MqarData make_zoology_mqar(const MqarConfig& config, std::mt19937& fillers);

// The seeds of the segments in the published training.
struct ZoologySeeds {
  std::vector<int64_t> train, test;
};
ZoologySeeds zoology_segment_seeds(int64_t data_seed, int64_t train_segments, int64_t test_segments);

// The data of a published training. The seeds in the configs are ignored: segments use zoology_segment_seeds(data_seed), and one generator
// of fillers, seeded with `filler_seed`, is shared by the train segments and then the test segments. (The published code initialises its
// model from the same generator first, so that its fillers depend on the model; here they depend only on the seed.) Each segment has its
// own thread.
struct MqarSegments {
  std::vector<MqarData> train, test;
};
MqarSegments make_zoology_segments(const std::vector<MqarConfig>& train, const std::vector<MqarConfig>& test, int64_t data_seed,
                                   int64_t filler_seed);

}  // namespace based
