// Times every CUDA kernel, or those of the named families. Does not use torch.
//   kernel_bench time FILE COMMIT [NAME...]   times, and the result file
//   kernel_bench profile [NAME...]            every timed case once, for a profiler
// With BASED_GPU_KERNELS=portable, a Hopper GPU runs the kernels of the other GPUs.
#include <cstdio>
#include <string>

#include "based/kernels/common/device_code.h"
#include "bench/kernels/common/problems/families.h"
#include "bench/kernels/common/timing.cuh"

int main(int argc, char** argv) {
  using namespace based::bench;
  const std::string mode = argc > 1 ? argv[1] : "";
  const int named = mode == "time" ? 4 : 2;
  if ((mode != "profile" && mode != "time") || argc < named) {
    std::fprintf(stderr, "kernel_bench profile [NAME...] | time FILE COMMIT [NAME...]\n");
    return 2;
  }
  const auto families = based::bench::families<Report>();
  const Names names(argc - named, argv + named);
  if (!names.known("kernel_bench", families)) return 2;
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernel_bench: %s\n", what);
  Report report;
  if (mode == "profile") call_once_only();
  for (const auto& family : families)
    if (names.has(family.name)) family.run(report);
  if (mode == "time") report.write(argv[2], argv[3]);
  return report.failures() == 0 ? 0 : 1;
}
