// Checks every CUDA kernel, or those of the families named, against sums in double. No torch.
//   kernels_cuda_tests [verify [NAME...]]     small shapes
//   kernels_cuda_tests verify-quick [NAME...] the same for a sanitizer
#include <cstdio>
#include <string>

#include "based/kernels/device_code.h"
#include "bench/cuda/problems/families.h"
#include "tests/kernels/cuda/cases.cuh"

namespace {

using based::tests::Report;

bool quick = false;

constexpr based::bench::Family<Report> kFamilies[] = {
    {"taylor", [](Report& report) { based::tests::verify_taylor(report, quick); }},
    {"linear_attention", based::tests::verify_linear_attention},
    {"causal_attention", based::tests::verify_causal_attention},
    {"causal_attention_step", based::tests::verify_causal_attention_step},
    {"rms_norm", based::tests::verify_rms_norm},
    {"swiglu", based::tests::verify_swiglu},
    {"activation", based::tests::verify_activation},
    {"rotary", based::tests::verify_rotary},
    {"short_conv", based::tests::verify_short_conv},
    {"selective_scan", based::tests::verify_selective_scan},
    {"selective_scan_step", based::tests::verify_selective_scan_step},
    {"gated_delta_rule", based::tests::verify_gated_delta_rule},
    {"gated_delta_rule_backward", based::tests::verify_gated_delta_rule_backward},
    {"diagonal_filter", based::tests::verify_diagonal_filter},
    {"gated_long_conv", based::tests::verify_gated_long_conv},
    {"embedding", based::tests::verify_embedding},
    {"column_sums", based::tests::verify_column_sums},
    {"short_conv_step", based::tests::verify_short_conv_step},
    {"embedding_step", based::tests::verify_embedding_step},
    {"linear", based::tests::verify_linear},
    {"sample", based::tests::verify_sample},
    {"step_norms", based::tests::verify_step_norms},
    {"gated_mlp", based::tests::verify_gated_mlp},
    {"adamw", based::tests::verify_adamw},
    {"gradient_norm", based::tests::verify_gradient_norm},
    {"dropout", based::tests::verify_dropout},
    {"layer_norm", based::tests::verify_layer_norm},
    {"cross_entropy", based::tests::verify_cross_entropy},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "verify";
  if (mode != "verify" && mode != "verify-quick") {
    std::fprintf(stderr, "kernels_cuda_tests [verify [NAME...] | verify-quick [NAME...]]\n");
    return 2;
  }
  const based::bench::Names names(argc > 2 ? argc - 2 : 0, argv + 2);
  if (!names.known("kernels_cuda_tests", kFamilies)) return 2;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "kernels_cuda_tests: no CUDA device\n");  // by which ctest knows a skipped test
    return 2;
  }
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernels_cuda_tests: %s\n", what);
  quick = mode == "verify-quick";
  Report report;
  for (const auto& family : kFamilies)
    if (names.has(family.name)) family.run(report);
  std::printf("%d failed, %d cases without a kernel on this device\n", report.failures(), report.without_kernel());
  return report.failures() == 0 ? 0 : 1;
}
