// Chunked Taylor attention on the CPU: forward, forward and backward, and growth with length.
#include <cmath>

#include "based/kernels/taylor/taylor.h"
#include "based/ops/taylor/taylor_attention.h"
#include "bench/case.h"

namespace based::bench {
namespace taylor_case {

constexpr int64_t heads = 16, feature_dim = 16, head_dim = 64;

struct Inputs {
  torch::Tensor q, k, v, cu_seqlens;
};

Inputs inputs(int64_t tokens, bool gradients) {
  const double scale = std::pow(static_cast<double>(feature_dim), -0.25);
  Inputs in{torch::randn({tokens, heads, feature_dim}) * scale, torch::randn({tokens, heads, feature_dim}) * scale,
            torch::randn({tokens, heads, head_dim}), torch::tensor({int64_t{0}, tokens})};
  for (torch::Tensor* x : {&in.q, &in.k, &in.v}) x->requires_grad_(gradients);
  return in;
}

double check_forward(int64_t tokens) {
  const torch::NoGradGuard no_grad;
  const Inputs in = inputs(tokens, false);
  const auto y = std::get<0>(ops::taylor_attention(in.q, in.k, in.v, in.cu_seqlens));
  const auto reference =
      ops::taylor_attention_quadratic(in.q.to(torch::kDouble), in.k.to(torch::kDouble), in.v.to(torch::kDouble), in.cu_seqlens);
  return verify(y, reference, 1e-4, "taylor_attention forward");
}

double forward_seconds(int64_t tokens, int repeats) {
  const torch::NoGradGuard no_grad;
  const Inputs in = inputs(tokens, false);
  return median_seconds([&] { ops::taylor_attention(in.q, in.k, in.v, in.cu_seqlens); }, repeats);
}

double forward_backward_seconds(int64_t tokens, int repeats) {
  const Inputs in = inputs(tokens, true);
  const torch::Tensor g = torch::randn({tokens, heads, head_dim});
  return median_seconds(
      [&] {
        torch::autograd::grad({std::get<0>(ops::taylor_attention(in.q, in.k, in.v, in.cu_seqlens))}, {in.q, in.k, in.v}, {g});
      },
      repeats);
}

void run(Context& context) {
  torch::manual_seed(1);
  const double error = check_forward(777), rate = context.ceilings.gemm_gflops(torch::kFloat);
  const std::string bound = "fp32 GEMM " + std::to_string(static_cast<int64_t>(rate)) + " GFLOP/s, packed operations";
  const std::vector<int64_t> lengths = context.quick ? std::vector<int64_t>{512, 2048} : std::vector<int64_t>{512, 1024, 2048, 4096, 16384};
  std::map<int64_t, double> forward;
  for (const int64_t tokens : lengths) {
    const int repeats = context.quick ? 3 : 11;
    forward[tokens] = forward_seconds(tokens, repeats);
    const double floor = static_cast<double>(kernels::taylor_attention_flops(tokens, heads, feature_dim, head_dim)) / (rate * 1e9);
    const std::string shape = "B=1 N=" + std::to_string(tokens) + " H=16 d'=16 d=64 fp32";
    context.add({"taylor_attention forward", shape, forward[tokens] * 1e3, "ms", floor * 1e3, floor / forward[tokens], bound, error, {}});
    if (tokens > 4096) continue;
    const double both = forward_backward_seconds(tokens, context.quick ? 3 : 7);
    context.add({"taylor_attention forward + backward",
                 shape,
                 both * 1e3,
                 "ms",
                 3 * floor * 1e3,
                 3 * floor / both,
                 bound,
                 error,
                 {{"times_forward", both / forward[tokens]}}});
  }
  const double growth = forward.rbegin()->second / forward[lengths[lengths.size() - 2]];
  context.add({"taylor_attention growth", "time at 4 x the length", growth, "x", 4, 4 / growth, "linear in the length", error, {}});
}

}  // namespace taylor_case

const Case case_taylor{"taylor", "chunked Taylor attention: forward, backward, growth with length", taylor_case::run};

}  // namespace based::bench
