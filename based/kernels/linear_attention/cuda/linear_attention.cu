// Linear attention on the GPU, implemented by the kernels for pairs of tokens.
#include "based/kernels/linear_attention/linear_attention.h"

#include "based/kernels/pair_attention/pair_attention.h"

namespace based::kernels::cuda {
namespace {

namespace pairs = detail::pairs;

pairs::Problem pair_problem(const LinearAttention& p) {
  pairs::Problem to = pairs::problem_of_tokens(p, p.features, pairs::Weights::linear);
  to.eps = p.eps;
  return to;
}

}  // namespace

bool linear_attention_takes(const LinearAttention& p) { return pairs::supports(pair_problem(p)); }

Status linear_attention_forward(const LinearAttention& p, Queue queue) { return pairs::forward(pair_problem(p), queue); }

int64_t linear_attention_backward_scratch(const LinearAttentionBackward& p) { return pairs::backward_scratch(pair_problem(p.forward)); }

Status linear_attention_backward(const LinearAttentionBackward& p, void* scratch, Queue queue) {
  return pairs::backward(pairs::gradients_of(pair_problem(p.forward), p, scratch), queue);
}

namespace {
const DefineLaunchers<LinearAttentionPairsLaunchers> kLaunchers(Device::cuda, {.supports = linear_attention_takes,
                                                                               .forward = linear_attention_forward,
                                                                               .backward_scratch = linear_attention_backward_scratch,
                                                                               .backward = linear_attention_backward});
}

}  // namespace based::kernels::cuda
