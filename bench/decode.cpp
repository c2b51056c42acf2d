// Greedy decoding with based-360m in bf16, the output projection included. A step decodes one token of every row.
#include <algorithm>

#include "bench/compare.h"
#include "bench/decoder.h"

namespace based::bench {
namespace decode_case {

void run(Context& context) {
  const torch::InferenceMode inference;
  const BenchModel bench = verified_model(context);
  const double rate = context.ceilings.read_gb_s(), floor = weight_bytes(*bench.model) / (rate * 1e9);
  const std::string bound = "weights read once at " + std::to_string(static_cast<int64_t>(rate)) + " GB/s";
  double one = 0;
  for (const int64_t batch : {1, 4, 16}) {
    Decoder decoder(*bench.model, batch);
    decoder.prefill(100);
    const double seconds = median_seconds([&] { decoder.step(); }, context.quick ? 5 : 31);
    if (batch == 1) one = seconds;
    const double rows = static_cast<double>(batch);
    context.add({"decode",
                 bench.name + " B=" + std::to_string(batch) + " position 100",
                 rows / seconds,
                 "tokens/s",
                 rows / floor,
                 floor / seconds,
                 bound,
                 bench.error,
                 {{"times_batch_1", rows * one / seconds}}});
  }
}

// Shows that the cost of a token does not depend on its position: measures a decoder early in a sequence and far into it.
void run_position(Context& context) {
  const torch::InferenceMode inference;
  const BenchModel bench = verified_model(context);
  const double rate = context.ceilings.read_gb_s(), floor = weight_bytes(*bench.model) / (rate * 1e9);
  const std::string bound = "weights read once at " + std::to_string(static_cast<int64_t>(rate)) + " GB/s";
  Decoder(*bench.model, 1).prefill(4096);  // so that the buffers of a long prompt are resident before anything is counted
  Decoder near(*bench.model, 1), far(*bench.model, 1);
  near.prefill(100);
  const int64_t position = context.quick ? 4000 : 100000;
  median_seconds([&] { near.step(); }, 5);
  const int64_t near_resident = resident_bytes();
  far.prefill(position);
  const int64_t far_resident = resident_bytes();
  // Alternates the two measurements, so that drift of the machine's speed affects both.
  std::vector<double> near_seconds, far_seconds;
  for (int i = 0; i < (context.quick ? 3 : 9); ++i) {
    near_seconds.push_back(median_seconds([&] { near.step(); }, 7));
    far_seconds.push_back(median_seconds([&] { far.step(); }, 7));
  }
  std::sort(near_seconds.begin(), near_seconds.end());
  std::sort(far_seconds.begin(), far_seconds.end());
  const double early = near_seconds[near_seconds.size() / 2], late = far_seconds[far_seconds.size() / 2];
  const auto add = [&](int64_t at, double seconds, const ModelState& state, int64_t resident) {
    context.add({"decode",
                 bench.name + " B=1 position " + std::to_string(at),
                 seconds * 1e3,
                 "ms/token",
                 floor * 1e3,
                 floor / seconds,
                 bound,
                 bench.error,
                 {{"time_ratio", seconds / early},
                  {"state_bytes", static_cast<double>(state.bytes())},
                  {"resident_ratio", static_cast<double>(resident) / static_cast<double>(near_resident)}}});
  };
  add(100, early, near.state, near_resident);
  add(position, late, far.state, far_resident);
}

}  // namespace decode_case

const Case case_decode{"decode", "a model token by token: batch 1, 4, 16; --compare: models side by side", decode_case::run, false,
                       compare_decode};
const Case case_position{"position", "what a token costs at position 100 and at 100,000", decode_case::run_position};

}  // namespace based::bench
