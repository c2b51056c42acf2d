// Checks every CUDA kernel against sums in double. No torch.
//   kernels_cuda_tests [verify]       small shapes, all kernels
//   kernels_cuda_tests verify-quick   the same for a sanitizer
//   kernels_cuda_tests verify-norms   norms in the layers before and after alone
#include <cstdio>
#include <string>

#include "based/kernels/device_code.h"
#include "tests/kernels/cuda/cases.cuh"

namespace {

void verify_all(based::tests::Report& report, bool quick) {
  using namespace based::tests;
  verify_taylor(report, quick);
  verify_causal_attention(report);
  verify_causal_attention_step(report);
  verify_rms_norm(report);
  verify_swiglu(report);
  verify_activation(report);
  verify_rotary(report);
  verify_short_conv(report);
  verify_selective_scan(report);
  verify_selective_scan_step(report);
  verify_gated_delta_rule(report);
  verify_gated_delta_rule_backward(report);
  verify_embedding(report);
  verify_column_sums(report);
  verify_short_conv_step(report);
  verify_embedding_step(report);
  verify_linear(report);
  verify_sample(report);
  verify_step_norms(report);
  verify_gated_mlp(report);
  verify_adamw(report);
  verify_gradient_norm(report);
  verify_dropout(report);
  verify_layer_norm(report);
  verify_cross_entropy(report);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "verify";
  if (argc > 2 || (mode != "verify" && mode != "verify-quick" && mode != "verify-norms")) {
    std::fprintf(stderr, "kernels_cuda_tests [verify | verify-quick | verify-norms]\n");
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "kernels_cuda_tests: no CUDA device\n");  // by which ctest knows a skipped test
    return 2;
  }
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernels_cuda_tests: %s\n", what);
  based::tests::Report report;
  if (mode == "verify-norms") {
    verify_step_norms(report);
  } else {
    verify_all(report, mode == "verify-quick");
    std::printf("%d failed, %d cases without a kernel on this device\n", report.failures(), report.without_kernel());
  }
  return report.failures() == 0 ? 0 : 1;
}
