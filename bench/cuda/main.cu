// Times every CUDA kernel, or those of the families named. No torch.
//   kernel_bench time FILE COMMIT [NAME...]   times, and the result file
//   kernel_bench profile [NAME...]            every timed case once, for a profiler
#include <cstdio>
#include <string>

#include "based/kernels/device_code.h"
#include "bench/cuda/cases.cuh"
#include "bench/cuda/problems/families.h"

namespace {

using based::bench::Report;

constexpr based::bench::Family<Report> kFamilies[] = {
    {"taylor", based::bench::time_taylor},
    {"linear_attention", based::bench::time_linear_attention},
    {"causal_attention", based::bench::time_causal_attention},
    {"causal_attention_step", based::bench::time_causal_attention_step},
    {"rms_norm", based::bench::time_rms_norm},
    {"swiglu", based::bench::time_swiglu},
    {"short_conv", based::bench::time_short_conv},
    {"selective_scan", based::bench::time_selective_scan},
    {"gated_delta_rule", based::bench::time_gated_delta_rule},
    {"gated_long_conv", based::bench::time_gated_long_conv},
    {"column_sums", based::bench::time_column_sums},
    {"cross_entropy", based::bench::time_cross_entropy},
    {"rotary", based::bench::time_rotary},
    {"rms_norm_backward", based::bench::time_rms_norm_backward},
    {"short_conv_backward", based::bench::time_short_conv_backward},
    {"embedding", based::bench::time_embedding},
    {"step_layers", based::bench::time_step_layers},
    {"gated_mlp", based::bench::time_gated_mlp},
    {"adamw", based::bench::time_adamw},
    {"gradient_norm", based::bench::time_gradient_norm},
    {"dropout", based::bench::time_dropout},
    {"layer_norm", based::bench::time_layer_norm},
    {"layer_norm_twice", based::bench::time_layer_norm_twice},
};

}  // namespace

int main(int argc, char** argv) {
  using namespace based::bench;
  const std::string mode = argc > 1 ? argv[1] : "";
  const int named = mode == "time" ? 4 : 2;
  if ((mode != "profile" && mode != "time") || argc < named) {
    std::fprintf(stderr, "kernel_bench profile [NAME...] | time FILE COMMIT [NAME...]\n");
    return 2;
  }
  Names names(argc - named, argv + named);
  if (!names.known("kernel_bench", kFamilies)) return 2;
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernel_bench: %s\n", what);
  Report report;
  if (mode == "profile") call_once_only();
  for (const auto& family : kFamilies)
    if (names.has(family.name)) family.run(report);
  if (mode == "time") report.write(argv[2], argv[3]);
  return report.failures() == 0 ? 0 : 1;
}
