// Helpers of the cases that run whole models: models with random weights, their verification, memory traffic, and resident memory.
#pragma once
#include <memory>

#include "based/generate/engine.h"
#include "based/kernels/taylor/deferred.h"
#include "based/models/language_model.h"
#include "bench/case.h"

namespace based::bench {

struct BenchModel {
  std::shared_ptr<LanguageModel> model;
  std::string name;  // "based-360m bf16"
  double error = 0;  // error of prefill and steps, compared with the parallel form in fp32 (fp64 for fp32 models)
};
// The model in the folder context.model, in its stored type, or based-360m (quick: based-demo) with random weights in bf16. It is verified
// on a short sequence.
BenchModel verified_model(const Context& context);
// A model of this configuration with random weights in bf16 on the context's device; not verified.
std::shared_ptr<LanguageModel> random_model(const Context& context, const ModelConfig& config);
std::shared_ptr<LanguageModel> random_preset(const Context& context, const std::string& preset);
// A copy of the model with the same weights in fp32 (fp64 for fp32 models) on the CPU.
std::shared_ptr<LanguageModel> exact_copy(const LanguageModel& model);
struct Tolerance {
  std::string what;
  double error = 0;
};
using ModelFunction = std::function<std::vector<torch::Tensor>(LanguageModel&)>;  // returns tensors on the CPU
// Verifies the results of `made` on the model against those of `expected` on its exact copy, and returns the last result's error. Models
// that normalize sums which may cancel are ill-conditioned in bf16. If ATen's CPU kernels in bf16 miss the tolerance as well, the model is
// verified in fp32 on its device instead.
double verify_in_type(LanguageModel& model, const ModelFunction& made, const ModelFunction& expected,
                      const std::vector<Tolerance>& allowed);
// Like verified_model, but for this configuration or preset.
BenchModel verified_config(const Context& context, const std::string& name, const ModelConfig& config);
BenchModel verified_preset(const Context& context, const std::string& preset);
// Operations per token of LanguageModel::prefill_last: two per weight. The embedding and the last layer's MLP, which only the last tokens
// use, are not counted.
double prefill_operations(const LanguageModel& model);
// Bytes of weights that a decoding step reads: all weights, the embedding once, as the output projection.
double weight_bytes(const LanguageModel& model);
// Bytes of state that a step of the engine must move for one sequence of this length: sums are read and written, keys and values are read.
// With deferred steps the sums are written once for all pending tokens, and the mean number of pending tokens is read per step.
double state_traffic(const Engine& engine, int64_t tokens);
// The least time of a computation on the context's device, and the ceiling that sets it.
struct FloorTime {
  double seconds = 0;
  std::string bound;
};
// A decoding step of `rows` sequences of `tokens` tokens each: max(bytes, arithmetic) of the weights, plus the bytes of the states.
FloorTime decode_floor(Context& context, const Engine& engine, int64_t rows, int64_t tokens);
// A prefill of `rows` prompts of `length` tokens: the larger of its arithmetic, Mixer::sequence_flops included, and its bytes, the weights
// and the states that it writes.
FloorTime prefill_floor(Context& context, LanguageModel& model, int64_t rows, int64_t length);
// Median time of LanguageModel::prefill_last and the logits of the last tokens, with a new state for each call.
double prefill_seconds(LanguageModel& model, int64_t rows, int64_t length, int repeats);
// An engine with `rows` sequences that have read random prompts of `prompt` tokens, and with memory for `more` tokens of each.
std::unique_ptr<Engine> filled_engine(LanguageModel& model, int64_t rows, int64_t prompt, int64_t more, const DecodeOptions& decode = {});
// Number of steps that are timed together on a GPU. It is a multiple of the steps between flushes, because only one step of such a round
// writes the sums of the Taylor states.
constexpr int64_t kTimedSteps = 2 * kernels::kTaylorPending;
torch::Tensor random_ids(const LanguageModel& model, int64_t count);
int64_t resident_bytes();

}  // namespace based::bench
