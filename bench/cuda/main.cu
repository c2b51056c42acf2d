// Checks every CUDA kernel against sums in double, then times them. No torch.
//   kernel_bench verify         small shapes, all kernels
//   kernel_bench verify-quick   the same for a sanitizer, but for the step in one kernel, which racecheck needs BASED_RACECHECK for
//   kernel_bench time FILE COMMIT   times, and the result file
//   kernel_bench step           the step in one kernel alone, checked and timed; verify-step: only checked
//   kernel_bench verify-norms   norms in the layers before and after alone
//   kernel_bench profile        every timed case once, for a profiler
#include <cstring>

#include "based/kernels/device_code.h"
#include "bench/cuda/adamw.cuh"
#include "bench/cuda/gated_mlp.cuh"
#include "bench/cuda/harness.cuh"
#include "bench/cuda/layers.cuh"
#include "bench/cuda/taylor.cuh"

int main(int argc, char** argv) {
  using namespace based::bench;
  const std::string mode = argc > 1 ? argv[1] : "";
  Report report;
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernel_bench: %s\n", what);
  if (mode == "verify-norms") {
    verify_step_norms(report);
  } else if (mode == "verify" || mode == "verify-quick") {
    verify_taylor(report, mode == "verify-quick");
    verify_causal_attention(report);
    verify_causal_attention_step(report);
    verify_layers(report);
    verify_linear(report);
    verify_sample(report);
    verify_step_norms(report);
    verify_gated_mlp(report);
    verify_adamw(report);
    std::printf("%d failed, %d cases without a kernel on this device\n", report.failures(), report.without_kernel());
  } else if (mode == "profile" || (mode == "time" && argc == 4)) {
    if (mode == "profile") call_once_only();
    time_taylor(report);
    time_causal_attention(report);
    time_causal_attention_step(report);
    time_layers(report);
    time_step_layers(report);
    time_gated_mlp(report);
    time_adamw(report);
    if (mode == "time") report.write(argv[2], argv[3]);
  } else {
    std::fprintf(stderr, "kernel_bench verify | verify-quick | verify-norms | profile | time FILE COMMIT\n");
    return 2;
  }
  return report.failures() == 0 ? 0 : 1;
}
