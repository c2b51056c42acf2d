// Chooses the CUDA implementation of each function of taylor.h.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/pair_attention/pair_attention.h"
#include "based/kernels/taylor/cuda/launchers.h"

namespace based::kernels::cuda {
namespace {

namespace pairs = detail::pairs;

pairs::Problem pair_problem(const TaylorAttention& p) {
  pairs::Problem to = pairs::problem_of_tokens(p, p.feature_dim, pairs::Weights::taylor);
  if (p.qk_stride != 0) to.q_stride = to.k_stride = p.qk_stride;
  if (p.v_stride != 0) to.v_stride = p.v_stride;
  return to;
}

// In fp32 the chunked kernel runs on the CUDA cores and the pair kernel on the tensor cores, so the pair kernel is faster up to some row
// length although it needs more operations.
bool takes_pairs(const TaylorAttention& p) {
  constexpr double kTimesFaster = 8;
  if (p.decay != nullptr || p.rows == 0) return false;
  const double length = static_cast<double>(p.tokens) / static_cast<double>(p.rows);
  const double pair_cost = length * (p.feature_dim + p.head_dim);
  const double chunk_cost = 4.0 * static_cast<double>(packed_features(p.feature_dim)) * p.head_dim;
  return pair_cost <= kTimesFaster * chunk_cost && pairs::supports(pair_problem(p));
}
bool forward_takes_pairs(const TaylorAttention& p) { return p.kv_state == nullptr && takes_pairs(p); }
bool backward_takes_pairs(const TaylorAttentionBackward& p) {
  return p.initial_kv_state == nullptr && p.grad_kv_state == nullptr && p.forward.denominator != nullptr && takes_pairs(p.forward);
}

// The chunked kernels of a call, the fastest first.
struct ForwardKernel {
  int64_t (*scratch)(const TaylorAttention&);
  Status (*run)(const TaylorAttention&, void* scratch, Queue);
};
ForwardKernel forward_kernel(const TaylorAttention& p) {
  if (detail::taylor_forward_sm90_supports(p)) return {detail::taylor_forward_sm90_scratch, detail::taylor_forward_sm90};
  if (detail::taylor_forward_mma_supports(p)) return {detail::taylor_forward_mma_scratch, detail::taylor_forward_mma};
  return {detail::taylor_forward_generic_scratch, detail::taylor_forward_generic};
}

struct BackwardKernel {
  int64_t (*scratch)(const TaylorAttentionBackward&);
  Status (*run)(const TaylorAttentionBackward&, void* scratch, Queue);
};
BackwardKernel backward_kernel(const TaylorAttentionBackward& p) {
  if (detail::taylor_backward_sm90_supports(p)) return {detail::taylor_backward_sm90_scratch, detail::taylor_backward_sm90};
  if (detail::taylor_backward_mma_supports(p)) return {detail::taylor_backward_mma_scratch, detail::taylor_backward_mma};
  return {detail::taylor_backward_generic_scratch, detail::taylor_backward_generic};
}

}  // namespace

bool taylor_attention_takes_strides(const TaylorAttention& p, bool states) {
  return p.tokens > 0 && (detail::taylor_forward_sm90_supports(p) || detail::taylor_forward_mma_supports(p) || (!states && takes_pairs(p)));
}

int64_t taylor_attention_scratch(const TaylorAttention& p) {
  if (p.tokens == 0 || p.rows == 0 || forward_takes_pairs(p)) return 0;
  return forward_kernel(p).scratch(p);
}

Status taylor_attention_forward(const TaylorAttention& p, void* scratch, Queue queue) {
  if (p.tokens == 0 || p.rows == 0) return {};
  if (forward_takes_pairs(p)) return pairs::forward(pair_problem(p), queue);
  return forward_kernel(p).run(p, scratch, queue);
}

int64_t taylor_attention_backward_scratch(const TaylorAttentionBackward& p) {
  if (backward_takes_pairs(p)) return pairs::backward_scratch(pair_problem(p.forward));
  return backward_kernel(p).scratch(p);
}

Status taylor_attention_backward(const TaylorAttentionBackward& p, void* scratch, Queue queue) {
  if (p.forward.rows == 0) return {};
  if (backward_takes_pairs(p)) return pairs::backward(pairs::gradients_of(pair_problem(p.forward), p, scratch), queue);
  return backward_kernel(p).run(p, scratch, queue);
}

namespace {
const DefineLaunchers<TaylorAttentionLaunchers> kLaunchers(Device::cuda, {.forward_scratch = taylor_attention_scratch,
                                                                          .forward = taylor_attention_forward,
                                                                          .backward_scratch = taylor_attention_backward_scratch,
                                                                          .backward = taylor_attention_backward,
                                                                          .takes_strides = taylor_attention_takes_strides,
                                                                          .step = taylor_attention_step,
                                                                          .step_head_dim = kTaylorStepHeadDim,
                                                                          .step_scales = true,
                                                                          .step_tokens = taylor_attention_tokens});
}

}  // namespace based::kernels::cuda
