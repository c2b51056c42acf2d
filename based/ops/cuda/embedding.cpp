#include "based/ops/embedding.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const EmbeddingKernels kCuda{launch<kernels::cuda::embedding_rows, kernels::EmbeddingRows>, kernels::cuda::embedding_backward_supports,
                             kernels::cuda::embedding_backward_scratch,
                             launch_with_scratch<kernels::cuda::embedding_backward, kernels::EmbeddingBackward>,
                             launch<kernels::cuda::embedding_step, kernels::EmbeddingStep>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<EmbeddingRows, [](const EmbeddingRows& in) { return embedding_rows_with(kCuda, in); }>(m);
  implement<EmbeddingBackward, [](const EmbeddingBackward& in) { embedding_backward_with(kCuda, in); }>(m);
  implement<EmbeddingStep, [](const EmbeddingStep& in) { return embedding_step_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
