// Times every CUDA kernel. No torch.
//   kernel_bench time FILE COMMIT   times, and the result file
//   kernel_bench profile            every timed case once, for a profiler
#include <cstdio>
#include <string>

#include "based/kernels/device_code.h"
#include "bench/cuda/cases.cuh"

int main(int argc, char** argv) {
  using namespace based::bench;
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode != "profile" && (mode != "time" || argc != 4)) {
    std::fprintf(stderr, "kernel_bench profile | time FILE COMMIT\n");
    return 2;
  }
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernel_bench: %s\n", what);
  Report report;
  if (mode == "profile") call_once_only();
  time_taylor(report);
  time_causal_attention(report);
  time_causal_attention_step(report);
  time_rms_norm(report);
  time_swiglu(report);
  time_short_conv(report);
  time_selective_scan(report);
  time_gated_delta_rule(report);
  time_column_sums(report);
  time_cross_entropy(report);
  time_rotary(report);
  time_rms_norm_backward(report);
  time_short_conv_backward(report);
  time_embedding(report);
  time_step_layers(report);
  time_gated_mlp(report);
  time_adamw(report);
  time_gradient_norm(report);
  time_dropout(report);
  time_layer_norm(report);
  time_layer_norm_twice(report);
  if (mode == "time") report.write(argv[2], argv[3]);
  return report.failures() == 0 ? 0 : 1;
}
