// Reports the results of the tests of the CUDA kernels.
#pragma once
#include <string>

#include "bench/kernels/common/problems/failures.cuh"

namespace based::tests {

class Report : public bench::Failures {
 public:
  // `quick`: only cases that are fast enough under a sanitizer.
  explicit Report(bool quick) : quick_(quick) {}
  bool quick() const { return quick_; }
  // Prints the error; the case fails unless error ≤ `limit`, so also where it is NaN.
  void expect(const std::string& what, double error, double limit);
  // For a case that no kernel supports on this device. Where the device runs Hopper's kernels, which support every case, it is a failure.
  void no_kernel(const std::string& what);
  int without_kernel() const { return without_kernel_; }

 private:
  bool quick_;
  int without_kernel_ = 0;
};

}  // namespace based::tests
