// Sums of the columns of a matrix of many rows (the gradient of a bias), in fp32, the same bits every time.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct ColumnSums {         // caller owns all memory
  const void* x = nullptr;  // [rows, columns], rows x_stride elements apart
  void* sums = nullptr;     // [columns], of x's type; rounded once
  int64_t rows = 0, columns = 0, x_stride = 0;
  DType dtype = DType::f32;
};

namespace cuda {
// Rows of whole 16 bytes, aligned to them.
bool column_sums_supports(const ColumnSums&);
int64_t column_sums_scratch(const ColumnSums&);
Status column_sums(const ColumnSums&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
