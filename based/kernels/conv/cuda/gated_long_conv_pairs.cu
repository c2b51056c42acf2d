// Gated long convolutions of heads of many channels, by the kernels for pairs of tokens: y_t = Σ_s filter[t − s] (q_t·k_s) v_s, since the
// sum over i of q_t[i] k_s[i] does not depend on j.
#include "based/kernels/conv/cuda/gated_long_conv.cuh"
#include "based/kernels/pair_attention/pair_attention.h"

namespace based::kernels::cuda::detail::long_conv {
namespace {

pairs::Problem pair_problem(const GatedLongConv& p) {
  pairs::Problem to;
  to.q = p.q, to.k = p.k, to.v = p.v, to.y = p.y;
  to.rows = p.rows, to.q_tokens = to.k_tokens = p.rows * p.length;
  to.q_stride = p.q_stride, to.k_stride = p.k_stride, to.v_stride = p.v_stride;
  to.heads = to.kv_heads = static_cast<int32_t>(p.channels / p.head_dim), to.head_dim = to.qk_dim = p.head_dim;
  to.single_tf32 = p.single_tf32;
  to.weights = pairs::Weights::filter, to.filter = p.filter, to.taps = p.taps;
  to.window = p.taps < p.length ? p.taps : 0;
  return to;
}

}  // namespace

bool takes_pairs(const GatedLongConv& p) {
  return pairs_are_less_work(p.length, p.head_dim) && p.q != nullptr && p.v != nullptr && p.y_stride == p.channels &&
         pairs::supports(pair_problem(p));
}

Status forward_by_pairs(const GatedLongConv& p, Queue queue) { return pairs::forward(pair_problem(p), queue); }

int64_t scratch_of_pairs(const GatedLongConv& p) { return pairs::filter_scratch(pair_problem(p)); }

Status backward_by_pairs(const GatedLongConvBackward& b, void* scratch, Queue queue) {
  if (b.grad_y_stride != b.forward.channels) return Status{"gated_long_conv_backward: grad_y must be contiguous"};
  if (b.forward.rows == 0 || b.forward.length == 0)
    return status_of(cudaMemsetAsync(b.grad_filter, 0, 4 * b.forward.channels / b.forward.head_dim * b.forward.taps, stream_of(queue)));
  pairs::Gradients to = pairs::gradients_of(pair_problem(b.forward), b, nullptr);
  to.grad_q_stride = b.grad_q_stride, to.grad_k_stride = b.grad_k_stride, to.grad_v_stride = b.grad_v_stride;
  to.filter_parts = static_cast<float*>(scratch), to.grad_filter = b.grad_filter;
  return pairs::backward(to, queue);
}

}  // namespace based::kernels::cuda::detail::long_conv
