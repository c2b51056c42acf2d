// Multi-query associative recall (paper, section 3; MQAR): a sequence of key-value pairs, then the keys again among fillers; at each
// repeated key the model must tell the value that stood behind it. Vocabulary V: token 0 is the plain filler, keys are 1 .. V/2-1, values
// V/2 .. V-1.
//
// One example with V = 16, length = 14, pairs = 3, as inputs and labels (-100: nothing to predict):
//
//   position   0   1   2   3   4   5     6     7    8     9   10    11   12   13
//   input      5  11   2   8   7  14     2     6    5    13    3     4    7    1
//   label   -100 ...................     8  -100   11  -100 -100 -100   14 -100
//              \___/   \___/   \___/     |          |                    |
//              key 5, value 11  ...      key 2      key 5                key 7, query of the third pair
//
// Queries stand at positions 2·pairs + 2·gap. The gaps are distinct, from 0 .. (length - 2·pairs)/2 - 1, drawn with probability
// proportional to (gap + 1)^(power_a - 1), so that most queries follow soon. The label stands at the query itself: it is what the model is
// to say next, while the input after it is a filler, never the answer. All other places hold fillers: here 6 13 3 4 1, none of them a key
// of the example.
//
// Example i is drawn from stream i of the seed alone: it does not depend on how many examples are made, nor on model, threads or device.
// Order of the draws: keys, values (both distinct), gaps, fillers.
#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "based/core/error.h"
#include "based/data/labels.h"

namespace based {

// Raised where the examples of a config change; kept results name it.
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
    field("vocab_size", vocab_size, "tokens: 0 the filler, keys below vocab_size/2, values from there");
    field("length", length, "tokens an example");
    field("pairs", pairs, "key-value pairs an example, each asked for once");
    field("examples", examples, "examples");
    field("power_a", power_a, "exponent a of the gaps' probability, proportional to (gap + 1)^(a - 1)");
    field("seed", seed, "seed of the data");
    field("random_fillers", random_fillers, "random tokens between the queries; otherwise token 0");
    field("fillers_avoid_keys", fillers_avoid_keys, "no random filler is a key of its example");
    field("compat", compat, "'zoology': the published generator, bit for bit (its fillers may be keys); 'none': ours");
    field("filler_seed", filler_seed, "zoology only: seed of the fillers' own generator; -1: seed");
  }
};

struct MqarData {
  int64_t examples = 0, length = 0;
  std::vector<int32_t> inputs, labels;  // [examples, length]

  uint64_t hash() const;  // of sizes, inputs and labels; equal for equal data on every platform
};

// Throws UsageError naming the field that cannot be.
void check_mqar(const MqarConfig& config);

// All examples of a checked config.
MqarData make_mqar(const MqarConfig& config);

// Example `index` of a checked config with compat 'none', into two rows of `length`.
void make_mqar_example(const MqarConfig& config, int64_t index, std::span<int32_t> inputs, std::span<int32_t> labels);

// The published generator: numpy's legacy MT19937 for all but the fillers, which come from the generator given (torch's global one in the
// peer, seeded once a run, so that it goes on from one segment to the next). Fillers can be keys of their example, without a label.
MqarData make_zoology_mqar(const MqarConfig& config, std::mt19937& fillers);

// The seeds that the published training gives its segments.
struct ZoologySeeds {
  std::vector<int64_t> train, test;
};
ZoologySeeds zoology_segment_seeds(int64_t data_seed, int64_t train_segments, int64_t test_segments);

// The data of a published training. The segments' own seeds are not read: these are zoology_segment_seeds of `data_seed`, and one generator
// of fillers, which begins at `filler_seed`, goes on over the train segments and then over the test segments. (The peer makes its model out
// of the same generator first, so that its fillers follow the model; here they follow the seed alone.) A thread each makes a segment.
struct MqarSegments {
  std::vector<MqarData> train, test;
};
MqarSegments make_zoology_segments(const std::vector<MqarConfig>& train, const std::vector<MqarConfig>& test, int64_t data_seed,
                                   int64_t filler_seed);

}  // namespace based
