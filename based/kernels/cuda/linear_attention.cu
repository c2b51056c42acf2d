// Linear attention on the GPU: over pairs of tokens alone.
#include "based/kernels/linear_attention.h"

#include "based/kernels/cuda/pair_attention.h"

namespace based::kernels::cuda {

bool linear_attention_takes(const LinearAttention& p) { return detail::pairs::supports(detail::pairs::problem_of(p)); }

Status linear_attention_forward(const LinearAttention& p, Stream stream) {
  return detail::pairs::forward(detail::pairs::problem_of(p), stream);
}

int64_t linear_attention_backward_scratch(const LinearAttentionBackward& p) {
  return detail::pairs::backward_scratch(detail::pairs::problem_of(p.forward));
}

Status linear_attention_backward(const LinearAttentionBackward& p, void* scratch, Stream stream) {
  return detail::pairs::backward(detail::pairs::gradients_of(p, scratch), stream);
}

}  // namespace based::kernels::cuda
