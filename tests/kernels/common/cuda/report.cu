#include "tests/kernels/common/cuda/report.cuh"

#include <cstdio>

#include "based/kernels/common/device_code.h"

namespace based::tests {

void Report::expect(const std::string& what, double error, double limit) {
  std::printf("%-76s error %.2e (allowed %.1e)\n", what.c_str(), error, limit);
  std::fflush(stdout);
  if (!(error <= limit)) fail(what);
}

void Report::no_kernel(const std::string& what) {
  if (kernels::cuda::runs_hopper_code()) return fail(what + ": no kernel takes it");
  ++without_kernel_;
}

}  // namespace based::tests
