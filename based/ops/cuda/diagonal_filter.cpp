#include "based/ops/diagonal_filter.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const DiagonalFilterKernels kCuda{launch<kernels::cuda::diagonal_filter_forward, kernels::DiagonalFilter>,
                                  launch<kernels::cuda::diagonal_filter_backward, kernels::DiagonalFilterBackward>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<DiagonalFilter, [](const DiagonalFilter& in) { return diagonal_filter_with(kCuda, in); }>(m);
  implement<DiagonalFilterBackward, [](const DiagonalFilterBackward& in) { return diagonal_filter_backward_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
