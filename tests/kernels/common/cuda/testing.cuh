// Shared by the tests of CUDA kernels. A test runs small shapes, compares them with sums in double precision on the host and registers
// itself under a name for the command line:
//   const DefineFamily<Report> kFoo("foo", verify_foo);  // void verify_foo(Report&), in tests/kernels/<family>/cuda/foo.cu
#pragma once
#include <cmath>

#include "bench/kernels/common/problems/device_memory.cuh"
#include "bench/kernels/common/problems/families.h"
#include "tests/kernels/common/cuda/report.cuh"

namespace based::tests {

using namespace bench;  // device memory, problems and families

// The largest allowed error of results that are rounded once to `dtype`.
inline double allowed(kernels::DType dtype) { return dtype == kernels::DType::bf16 ? 2.5e-3 : 2e-6; }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace based::tests
