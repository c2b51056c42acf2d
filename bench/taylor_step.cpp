// The recurrent step: the packed fp32 state is read and written once.
#include <cmath>

#include "based/kernels/taylor/taylor.h"
#include "based/ops/taylor/taylor_attention.h"
#include "bench/case.h"

namespace based::bench {
namespace taylor_step_case {

constexpr int64_t heads = 16, feature_dim = 16, head_dim = 64;

double check_steps() {
  const int64_t tokens = 65;
  const double scale = std::pow(static_cast<double>(feature_dim), -0.25);
  const torch::Tensor q = torch::randn({tokens, heads, feature_dim}) * scale, k = torch::randn({tokens, heads, feature_dim}) * scale,
                      v = torch::randn({tokens, heads, head_dim}), slots = torch::tensor({int64_t{0}});
  const int64_t features = kernels::packed_features(feature_dim);
  ops::TaylorState state{torch::zeros({1, heads, features, head_dim}), torch::zeros({1, heads, features})};
  std::vector<torch::Tensor> rows;
  for (int64_t t = 0; t < tokens; ++t)
    rows.push_back(ops::taylor_attention_step(q.narrow(0, t, 1), k.narrow(0, t, 1), v.narrow(0, t, 1), state, slots));
  const auto reference = ops::taylor_attention_quadratic(q.to(torch::kDouble), k.to(torch::kDouble), v.to(torch::kDouble),
                                                         torch::tensor({int64_t{0}, tokens}));
  return verify(torch::cat(rows), reference, 1e-4, "taylor_attention_step");
}

void run(Context& context) {
  torch::manual_seed(2);
  const torch::InferenceMode inference;
  const double error = check_steps(), rate = context.ceilings.copy_gb_s();
  const int64_t features = kernels::packed_features(feature_dim);
  for (const int64_t batch : {1, 4, 16, 64}) {
    // Cycles through the states of several layers, so that none is still in the cache from an earlier call.
    const int64_t state_bytes = batch * heads * features * (head_dim + 1) * 4;
    const int64_t layers = std::max<int64_t>(2, (int64_t{256} << 20) / state_bytes);
    std::vector<ops::TaylorState> states;
    for (int64_t i = 0; i < layers; ++i)
      states.push_back({torch::zeros({batch, heads, features, head_dim}), torch::zeros({batch, heads, features})});
    const torch::Tensor q = torch::randn({batch, heads, feature_dim}) * 0.5, k = torch::randn({batch, heads, feature_dim}) * 0.5,
                        v = torch::randn({batch, heads, head_dim}), slots = torch::arange(batch);
    const double seconds = median_seconds(
                               [&] {
                                 for (auto& state : states) ops::taylor_attention_step(q, k, v, state, slots);
                               },
                               context.quick ? 3 : 9) /
                           static_cast<double>(layers);
    const double floor = 2.0 * static_cast<double>(state_bytes) / (rate * 1e9);
    context.add({"taylor_attention step",
                 "B=" + std::to_string(batch) + " H=16 d'=16 d=64 fp32 state",
                 seconds * 1e3,
                 "ms",
                 floor * 1e3,
                 floor / seconds,
                 "copy " + std::to_string(static_cast<int64_t>(rate)) + " GB/s, state read and written",
                 error,
                 {}});
  }
}

}  // namespace taylor_step_case

const Case case_taylor_step{"taylor_step", "recurrent Taylor attention step against the memory bandwidth", taylor_step_case::run};

}  // namespace based::bench
