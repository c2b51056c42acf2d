// What the tests of the CUDA kernels find.
#pragma once
#include <string>

#include "bench/cuda/problems/failures.cuh"

namespace based::tests {

class Report : public bench::Failures {
 public:
  // Prints the error and fails where it is not ≤ `limit` (NaN never is).
  void expect(const std::string& what, double error, double limit);
  // For a case that no kernel takes here. Where the device runs Hopper's kernels, which take every case, it fails.
  void no_kernel(const std::string& what);
  int without_kernel() const { return without_kernel_; }

 private:
  int without_kernel_ = 0;
};

}  // namespace based::tests
