#include "based/ops/embedding.h"

#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

const EmbeddingKernels kCuda{kernels::cuda::embedding_backward_supports, kernels::cuda::embedding_backward_scratch,
                             launch_with_scratch<kernels::cuda::embedding_backward, kernels::EmbeddingBackward>,
                             launch<kernels::cuda::embedding_step, kernels::EmbeddingStep>};

void backward(Tensor sum, const Tensor& grad, const Tensor& ids) {
  const OnDevice device("embedding_backward_", {{"sum", sum}, {"grad", grad}, {"ids", ids}});
  embedding_backward_with(kCuda, std::move(sum), grad, ids);
}

std::tuple<Tensor, Tensor> step(Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids) {
  const OnDevice device("embedding_step_", {{"seen", seen}, {"slots", slots}, {"table", table}, {"ids", ids}});
  const auto [rows, positions] = embedding_step_with(kCuda, std::move(seen), slots, table, ids);
  return {rows, positions};
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("embedding_backward_", backward);
  m.impl("embedding_step_", step);
}

}  // namespace
}  // namespace based::ops
