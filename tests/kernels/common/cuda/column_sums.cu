#include "based/kernels/common/column_sums.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

// Columns of a wider matrix.
void verify_column_sums(Report& report, int64_t rows, int64_t columns, DType dtype) {
  const int64_t stride = columns + 16;
  const Buffer x = random_buffer(rows * stride + columns, dtype, 1, 1), sums(columns * 4);
  const kernels::ColumnSums p{x.as(), sums.as(), rows, columns, stride, dtype};
  const Buffer scratch(gpu::column_sums_scratch(p));
  check(gpu::column_sums(p, scratch.as(), {}));
  const std::vector<double> all = download(x.as(), dtype, rows * stride);
  std::vector<double> exact(columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) exact[c] += all[r * stride + c];
  }
  report.expect("column_sums " + std::to_string(rows) + "x" + std::to_string(columns) + type_name(dtype),
                relative_error(download(sums.as(), dtype, columns), exact), allowed(dtype));
}

void verify_column_sums(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  for (const int64_t rows : {1, 70, 5000}) {
    verify_column_sums(report, rows, 8, bf), verify_column_sums(report, rows, 1040, bf), verify_column_sums(report, rows, 132, fp);
  }
}

const DefineFamily<Report> kColumnSums("column_sums", verify_column_sums);

}  // namespace
}  // namespace based::tests
