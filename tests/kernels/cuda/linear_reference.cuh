// Linear layers and their activation in double, on the host.
#pragma once
#include <vector>

#include "based/kernels/linear.h"

namespace based::tests {

// x·weightᵀ + bias in double, [rows, out], of x [rows, x_stride] on the host.
std::vector<double> exact_outputs(const std::vector<double>& x, const kernels::Linear& p);
// The first half of each row of h [rows, 2·width] times the SiLU of the second.
std::vector<double> exact_swiglu(const std::vector<double>& h, int64_t width);

}  // namespace based::tests
