// Chooses the implementation of each call of taylor_attention.h on the GPU.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/taylor_launchers.h"

namespace based::kernels::cuda {

bool taylor_attention_takes_strides(const TaylorAttention& p) { return p.tokens > 0 && detail::taylor_forward_sm90_supports(p); }

int64_t taylor_attention_scratch(const TaylorAttention& p) {
  if (p.tokens == 0 || p.rows == 0) return 0;
  return detail::taylor_forward_sm90_supports(p) ? detail::taylor_forward_sm90_scratch(p) : detail::taylor_forward_generic_scratch(p);
}

Status taylor_attention_forward(const TaylorAttention& p, void* scratch, Stream stream) {
  if (p.tokens == 0 || p.rows == 0) return {};
  return detail::taylor_forward_sm90_supports(p) ? detail::taylor_forward_sm90(p, scratch, stream)
                                                 : detail::taylor_forward_generic(p, scratch, stream);
}

int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward& p) {
  return detail::taylor_backward_sm90_supports(p) ? detail::taylor_backward_sm90_scratch(p) : detail::taylor_backward_generic_scratch(p);
}

Status taylor_attention_backward(const TaylorAttentionBackward& p, void* scratch, Stream stream) {
  if (p.forward.rows == 0) return {};
  return detail::taylor_backward_sm90_supports(p) ? detail::taylor_backward_sm90(p, scratch, stream)
                                                  : detail::taylor_backward_generic(p, scratch, stream);
}

}  // namespace based::kernels::cuda
