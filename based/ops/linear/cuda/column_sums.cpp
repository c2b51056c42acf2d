#include "based/ops/linear/cuda/column_sums.h"

#include "based/kernels/common/column_sums.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {

Tensor column_sums(const Tensor& x) {
  const Tensor rows = with_unit_columns(x), sums = at::empty({x.size(1)}, x.options());
  const kernels::ColumnSums p{rows.const_data_ptr(), sums.mutable_data_ptr(), x.size(0), x.size(1), rows.stride(0), kernel_dtype(x)};
  if (!kernels::cuda::column_sums_supports(p)) return x.sum(0);
  const Tensor scratch = scratch_memory(kernels::cuda::column_sums_scratch(p), x);
  require_ok(kernels::cuda::column_sums(p, scratch.mutable_data_ptr(), queue_of(x)));
  return sums;
}

}  // namespace based::ops
