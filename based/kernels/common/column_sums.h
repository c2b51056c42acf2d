// Column sums of a matrix with many rows (the gradient of a bias), in fp32; deterministic.
#pragma once
#include "based/kernels/common/kernel.h"

namespace based::kernels {

struct ColumnSums {         // caller owns all memory
  const void* x = nullptr;  // [rows, columns], rows x_stride elements apart
  void* sums = nullptr;     // [columns], of x's type; each fp32 sum is rounded once
  int64_t rows = 0, columns = 0, x_stride = 0;
  DType dtype = DType::f32;
};

namespace cuda {
// Whether the rows are multiples of 16 bytes and aligned to 16 bytes.
bool column_sums_supports(const ColumnSums&);
int64_t column_sums_scratch(const ColumnSums&);
Status column_sums(const ColumnSums&, void* scratch, Queue);
}  // namespace cuda

}  // namespace based::kernels
