// The paper's models, and the models that they are compared with, in bf16 on a GPU: prefill, and decoding with the engine, where a step is
// one CUDA graph.
#include <torch/cuda.h>

#include "based/generate/engine.h"
#include "bench/model.h"

namespace based::bench {
namespace gpu_case {

// A result in tok/ms.
Result rate(const std::string& headline, const std::string& what, const BenchModel& bench, double tokens, double seconds,
            double floor_seconds, const std::string& bound) {
  Result result{what,  bench.name, tokens / seconds / 1e3, "tok/ms", tokens / floor_seconds / 1e3, floor_seconds / seconds,
                bound, bench.error};
  result.headline = headline;
  result.more = {{"ms", seconds * 1e3}};
  return result;
}

// The paper's name of a Based model (its size), or the preset's name of another model.
std::string short_name(const std::string& preset) { return preset.starts_with("based-") ? preset.substr(6) : preset; }

void run_prefill(Context& context) {
  const torch::InferenceMode inference;
  const double gemm = context.ceilings.gemm_gflops(torch::kBFloat16) * 1e9;
  struct Shape {
    const char* preset;
    int64_t length;
  };
  for (const Shape& shape :
       context.quick ? std::vector<Shape>{{"based-demo", 512}}
                     : std::vector<Shape>{{"based-360m", 16384}, {"based-1.4b", 4096}, {"mamba-360m", 16384}, {"gla-360m", 16384}}) {
    if (!context.measures(shape.preset)) continue;
    const BenchModel bench = verified_preset(context, shape.preset);
    constexpr int64_t rows = 2;
    const auto tokens = static_cast<double>(rows * shape.length);
    const double seconds = prefill_seconds(*bench.model, rows, shape.length, 11);
    context.add(rate("prefill_" + short_name(shape.preset) + "_2x" + std::to_string(shape.length),
                     "prefill 2 x " + std::to_string(shape.length), bench, tokens, seconds,
                     prefill_operations(*bench.model) * tokens / gemm, "bf16 GEMM, the weights' operations"));
  }
}

// Fills every slot with a prompt of 64 tokens; then every step draws a token for each slot.
void fill(Engine& engine) {
  std::vector<int64_t> prompt(64);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = (31 * static_cast<int64_t>(i) + 7 * engine.slots()) % 1000;
  for (int64_t i = 0; i < engine.slots(); ++i) engine.add(prompt, {.sampling = {1, 50, 0.95}});
  while (static_cast<int64_t>(engine.step().size()) < engine.slots()) {}
}

Result measure_decode(Context& context, const BenchModel& bench, const EngineOptions& options, const std::string& headline) {
  Engine engine(*bench.model, options);
  fill(engine);
  const auto each = [&](const std::function<void()>& body) { return median_seconds(body, 7) / static_cast<double>(kTimedSteps); };
  const double seconds = each([&] {
    engine.run(kTimedSteps);
    torch::cuda::synchronize();
  });
  const double fetching = each([&] {
    for (int64_t i = 0; i < kTimedSteps; ++i) engine.step();
  });
  const auto rows = static_cast<double>(options.slots);
  const FloorTime floor = decode_floor(context, engine, options.slots, 0);
  Result result = rate(headline,
                       "decode B=" + std::to_string(options.slots) + ", top-k top-p" +
                           (options.decode.invariant                  ? ", invariant"
                            : options.decode.steps == Steps::recorded ? ", not fused"
                                                                      : ""),
                       bench, rows, seconds, floor.seconds, floor.bound);
  result.more["ms_with_tokens_fetched"] = fetching * 1e3;  // the host waits for the tokens of each step
  return result;
}

void run_decode(Context& context) {
  context.ceilings.measure();
  for (const std::string& preset :
       context.quick ? std::vector<std::string>{"based-demo"} : std::vector<std::string>{"based-360m", "based-1.4b"}) {
    if (!context.measures(preset)) continue;
    const BenchModel bench = verified_preset(context, preset);
    const std::string name = "decode_" + short_name(preset) + "_b";
    for (const int64_t batch : context.quick ? std::vector<int64_t>{4} : std::vector<int64_t>{1, 16, 128, 256, 512})
      context.add(measure_decode(context, bench, {.slots = batch}, name + std::to_string(batch)));
    context.add(measure_decode(context, bench, {.slots = 128, .decode = {.invariant = true}}, name + "128_invariant"));
    for (const int64_t batch : {1, 128})
      context.add(measure_decode(context, bench, {.slots = batch, .decode = {.steps = Steps::recorded}}, ""));
  }
  for (const std::string& preset : context.quick ? std::vector<std::string>{} : std::vector<std::string>{"mamba-360m", "gla-360m"}) {
    if (!context.measures(preset)) continue;
    const BenchModel bench = verified_preset(context, preset);
    for (const int64_t batch : {1, 128})
      context.add(measure_decode(context, bench, {.slots = batch}, "decode_" + preset + "_b" + std::to_string(batch)));
  }
}

}  // namespace gpu_case

const Case case_gpu_prefill{"gpu_prefill", "whole models over two prompts, on a GPU", gpu_case::run_prefill, true};
const Case case_gpu_decode{"gpu_decode", "whole models token by token, sampling included, on a GPU", gpu_case::run_decode, true};

}  // namespace based::bench
