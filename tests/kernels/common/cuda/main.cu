// Compares every CUDA kernel, or those of the named families, with sums in double precision. Does not use torch.
//   kernels_cuda_tests [verify [NAME...]]     small shapes
//   kernels_cuda_tests verify-quick [NAME...] the same for a sanitizer
// With BASED_GPU_KERNELS=portable, a Hopper GPU runs the kernels of the other GPUs.
#include <cstdio>
#include <string>

#include "based/kernels/common/device_code.h"
#include "bench/kernels/common/problems/families.h"
#include "tests/kernels/common/cuda/testing.cuh"

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "verify";
  if (mode != "verify" && mode != "verify-quick") {
    std::fprintf(stderr, "kernels_cuda_tests [verify [NAME...] | verify-quick [NAME...]]\n");
    return 2;
  }
  using based::tests::Report;
  const auto families = based::bench::families<Report>();
  const based::bench::Names names(argc > 2 ? argc - 2 : 0, argv + 2);
  if (!names.known("kernels_cuda_tests", families)) return 2;
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "kernels_cuda_tests: no CUDA device\n");  // ctest recognises a skipped test by this text
    return 2;
  }
  if (const char* what = based::kernels::cuda::missing_code()) std::fprintf(stderr, "kernels_cuda_tests: %s\n", what);
  Report report(mode == "verify-quick");
  for (const auto& family : families)
    if (names.has(family.name)) family.run(report);
  std::printf("%d failed, %d cases without a kernel on this device\n", report.failures(), report.without_kernel());
  return report.failures() == 0 ? 0 : 1;
}
