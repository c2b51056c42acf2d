// Chooses the implementation of each call of taylor_attention.h on the GPU.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/pair_attention.h"
#include "based/kernels/cuda/taylor_launchers.h"

namespace based::kernels::cuda {
namespace {

// In fp32 the chunked form runs on the CUDA cores, pairs on the tensor cores: up to some length of rows they are sooner done, though they
// are more operations.
bool takes_pairs(const TaylorAttention& p) {
  constexpr double kTimesFaster = 8;
  if (p.decay != nullptr || p.rows == 0) return false;
  const double length = static_cast<double>(p.tokens) / static_cast<double>(p.rows);
  const double pairs = length * (p.feature_dim + p.head_dim);
  const double chunked = 4.0 * static_cast<double>(packed_features(p.feature_dim)) * p.head_dim;
  return pairs <= kTimesFaster * chunked && detail::pairs::supports(detail::pairs::problem_of(p));
}
bool forward_takes_pairs(const TaylorAttention& p) { return p.kv_state == nullptr && takes_pairs(p); }
bool backward_takes_pairs(const TaylorAttentionBackward& p) {
  return p.initial_kv_state == nullptr && p.grad_kv_state == nullptr && p.forward.denominator != nullptr && takes_pairs(p.forward);
}

}  // namespace

bool taylor_attention_takes_strides(const TaylorAttention& p, bool states) {
  return p.tokens > 0 && (detail::taylor_forward_sm90_supports(p) || (!states && takes_pairs(p)));
}

int64_t taylor_attention_scratch(const TaylorAttention& p) {
  if (p.tokens == 0 || p.rows == 0 || forward_takes_pairs(p)) return 0;
  return detail::taylor_forward_sm90_supports(p) ? detail::taylor_forward_sm90_scratch(p) : detail::taylor_forward_generic_scratch(p);
}

Status taylor_attention_forward(const TaylorAttention& p, void* scratch, Stream stream) {
  if (p.tokens == 0 || p.rows == 0) return {};
  if (forward_takes_pairs(p)) return detail::pairs::forward(detail::pairs::problem_of(p), stream);
  return detail::taylor_forward_sm90_supports(p) ? detail::taylor_forward_sm90(p, scratch, stream)
                                                 : detail::taylor_forward_generic(p, scratch, stream);
}

int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward& p) {
  if (backward_takes_pairs(p)) return detail::pairs::backward_scratch(detail::pairs::problem_of(p.forward));
  return detail::taylor_backward_sm90_supports(p) ? detail::taylor_backward_sm90_scratch(p) : detail::taylor_backward_generic_scratch(p);
}

Status taylor_attention_backward(const TaylorAttentionBackward& p, void* scratch, Stream stream) {
  if (p.forward.rows == 0) return {};
  if (backward_takes_pairs(p)) return detail::pairs::backward(detail::pairs::gradients_of(p, scratch), stream);
  return detail::taylor_backward_sm90_supports(p) ? detail::taylor_backward_sm90(p, scratch, stream)
                                                  : detail::taylor_backward_generic(p, scratch, stream);
}

}  // namespace based::kernels::cuda
