// Reference linear layer and SwiGLU in double precision on the host.
#pragma once
#include <vector>

#include "based/kernels/linear/linear.h"

namespace based::tests {

// Returns x·weightᵀ + bias [rows, out] for x [rows, x_stride] on the host.
std::vector<double> exact_outputs(const std::vector<double>& x, const kernels::Linear& p);
// Returns the first half of each row of h [rows, 2·width] times the SiLU of the second half.
std::vector<double> exact_swiglu(const std::vector<double>& h, int64_t width);

}  // namespace based::tests
