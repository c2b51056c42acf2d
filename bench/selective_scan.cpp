// The selective scan on the CPU with the sizes of mamba-360m: forward, forward with backward, and the decoding step.
#include "based/ops/scan/selective_scan.h"

#include "bench/case.h"

namespace based::bench {
namespace selective_scan_case {

constexpr int64_t channels = 2048, state_size = 16;
// Operations per token, channel and number of its state. A decay is a power of two, computed by a polynomial of six multiply-adds. The
// backward recomputes the states.
constexpr double forward_operations = 18, both_operations = 50;

struct Inputs {
  torch::Tensor x, dt, A_log, B, C;
  std::optional<torch::Tensor> D, z, dt_bias;
  torch::Tensor cu_seqlens;

  Inputs(int64_t tokens, bool gradients)
      : x(torch::randn({tokens, channels})),
        dt(torch::randn({tokens, channels}) - 3),
        A_log(torch::arange(1, state_size + 1, torch::kFloat).log().repeat({channels, 1})),
        B(torch::randn({tokens, 1, state_size})),
        C(torch::randn({tokens, 1, state_size})),
        D(torch::ones({channels})),
        z(torch::randn({tokens, channels})),
        dt_bias(torch::zeros({channels})),
        cu_seqlens(torch::tensor({int64_t{0}, tokens})) {
    for (torch::Tensor* t : {&x, &dt, &A_log, &B, &C, &*D, &*z, &*dt_bias}) t->requires_grad_(gradients);
  }
  ops::SelectiveScanInputs inputs() const { return {x, dt, A_log, B, C, D, z, dt_bias}; }
  Inputs exact() const {
    Inputs in = *this;
    for (torch::Tensor* t : {&in.x, &in.dt, &in.A_log, &in.B, &in.C, &*in.D, &*in.z, &*in.dt_bias}) *t = t->to(torch::kDouble);
    return in;
  }
};

double check_forward() {
  const torch::NoGradGuard no_grad;
  const Inputs in(130, false), exact = in.exact();
  const auto y = std::get<0>(ops::selective_scan(in.inputs(), in.cu_seqlens));
  return verify(y, std::get<0>(ops::selective_scan_reference(exact.inputs(), in.cu_seqlens)), 1e-4, "selective_scan forward");
}

double both_seconds(const Inputs& in, decltype(&ops::selective_scan) op, int repeats) {
  const torch::Tensor g = torch::randn({in.x.size(0), channels});
  return median_seconds(
      [&] {
        torch::autograd::grad({std::get<0>(op(in.inputs(), in.cu_seqlens, {}))},
                              {in.x, in.dt, in.A_log, in.B, in.C, *in.D, *in.z, *in.dt_bias}, {g});
      },
      repeats);
}

void measure_rows(Context& context, double error) {
  const int64_t tokens = context.quick ? 256 : 2048;
  const int repeats = context.quick ? 3 : 9;
  const Inputs in(tokens, false), trained(tokens, true);
  const auto forward_seconds = [&](decltype(&ops::selective_scan) op, int times) {
    const torch::NoGradGuard no_grad;
    return median_seconds([&] { op(in.inputs(), in.cu_seqlens, {}); }, times);
  };
  const double forward = forward_seconds(ops::selective_scan, repeats), both = both_seconds(trained, ops::selective_scan, repeats);
  const double rate = context.ceilings.gemm_gflops(torch::kFloat), copy = context.ceilings.copy_gb_s();
  const auto states = static_cast<double>(tokens * channels * state_size), numbers = static_cast<double>(tokens * channels);
  const std::string shape = "B=1 N=" + std::to_string(tokens) + " channels=2048 state=16 fp32";
  const auto add = [&](const char* name, double seconds, double operations, double bytes, double reference) {
    const double arithmetic = operations / (rate * 1e9), traffic = bytes / (copy * 1e9), floor = std::max(arithmetic, traffic);
    context.add({name,
                 shape,
                 seconds * 1e3,
                 "ms",
                 floor * 1e3,
                 floor / seconds,
                 arithmetic > traffic ? "fp32 GEMM " + std::to_string(static_cast<int64_t>(rate)) + " GFLOP/s"
                                      : "copy " + std::to_string(static_cast<int64_t>(copy)) + " GB/s",
                 error,
                 {{"bytes_ms", traffic * 1e3}, {"reference_ms", reference * 1e3}}});
  };
  // x, dt, z are read and y is written; the backward reads them and grad_y, and writes three gradients.
  add("selective_scan forward", forward, forward_operations * states, 4 * 4 * numbers, forward_seconds(ops::selective_scan_reference, 1));
  add("selective_scan forward + backward", both, both_operations * states, (4 + 7) * 4 * numbers,
      both_seconds(trained, ops::selective_scan_reference, 1));
}

void measure_steps(Context& context, double error) {
  const torch::InferenceMode inference;
  const double rate = context.ceilings.copy_gb_s();
  for (const int64_t batch : {1, 4, 16, 64}) {
    // Cycles through the states of several layers, so that none is still in the cache from an earlier call.
    const int64_t state_bytes = batch * channels * state_size * 4, layers = std::max<int64_t>(2, (int64_t{256} << 20) / state_bytes);
    std::vector<torch::Tensor> states;
    for (int64_t i = 0; i < layers; ++i) states.push_back(torch::zeros({batch, channels, state_size}));
    const Inputs in(batch, false);
    const torch::Tensor slots = torch::arange(batch);
    const double seconds = median_seconds(
                               [&] {
                                 for (auto& state : states) ops::selective_scan_step(in.inputs(), state, slots);
                               },
                               context.quick ? 3 : 9) /
                           static_cast<double>(layers);
    const double floor = 2.0 * static_cast<double>(state_bytes) / (rate * 1e9);
    context.add({"selective_scan step",
                 "B=" + std::to_string(batch) + " channels=2048 state=16 fp32 state",
                 seconds * 1e3,
                 "ms",
                 floor * 1e3,
                 floor / seconds,
                 "copy " + std::to_string(static_cast<int64_t>(rate)) + " GB/s, state read and written",
                 error,
                 {}});
  }
}

void run(Context& context) {
  torch::manual_seed(6);
  const double error = check_forward();
  measure_rows(context, error);
  measure_steps(context, error);
}

}  // namespace selective_scan_case

const Case case_selective_scan{"selective_scan", "the selective scan: forward, backward, step", selective_scan_case::run};

}  // namespace based::bench
