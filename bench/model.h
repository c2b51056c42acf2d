// What the cases that run whole models share: based-360m with random weights, and the process's resident memory.
#pragma once
#include <memory>

#include "based/generate/engine.h"
#include "based/kernels/taylor_deferred.h"
#include "based/models/language_model.h"
#include "bench/case.h"

namespace based::bench {

struct BenchModel {
  std::shared_ptr<LanguageModel> model;
  std::string name;  // "based-360m bf16"
  double error = 0;  // prefill and steps against the parallel form in fp32 (fp64 for fp32 models)
};
// The model that the context names: a folder's, as stored, or based-360m (quick: based-demo) with random weights in bf16. Verified on a
// short text.
BenchModel verified_model(const Context& context);
// The preset in bf16, on the context's device, with random weights; not verified.
std::shared_ptr<LanguageModel> random_preset(const Context& context, const std::string& preset);
// The model in fp32 (fp64 for fp32 models), with the same weights, on the CPU.
std::shared_ptr<LanguageModel> exact_copy(const LanguageModel& model);
struct Tolerance {
  std::string what;
  double error = 0;
};
using ModelFunction = std::function<std::vector<torch::Tensor>(LanguageModel&)>;  // its results are on the CPU
// verify() of all that `made` gives of the model against what `expected` gives of its exact copy; the last one's error. Models that
// normalise sums which cancel are badly conditioned in bf16: where ATen's kernels on the CPU miss the tolerance, too, the model in fp32 is
// verified, on its device.
double verify_in_type(LanguageModel& model, const ModelFunction& made, const ModelFunction& expected,
                      const std::vector<Tolerance>& allowed);
// The same as verified_model for this preset, whatever the context names.
BenchModel verified_preset(const Context& context, const std::string& preset);
// Operations of LanguageModel::prefill_last a token: two a weight, without the embedding's and the last layer's MLP, where few tokens come.
double prefill_operations(const LanguageModel& model);
// Bytes of the weights that a decoding step reads: all, the embedding once, as the output projection.
double weight_bytes(const LanguageModel& model);
// What a step of the engine must move of its state for one sequence of this length: sums are read and written, keys and values are read.
// Where tokens wait beside sums, these are written once for all that wait, and what waits is read, on the mean.
double state_traffic(const Engine& engine, int64_t tokens);
// Steps of an engine on a GPU that are timed at once: whole rounds, since one step in a round writes the sums of Taylor's states.
constexpr int64_t kTimedSteps = 2 * kernels::kTaylorPending;
torch::Tensor random_ids(const LanguageModel& model, int64_t count);
int64_t resident_bytes();

}  // namespace based::bench
