#include "based/ops/sampling/top_tokens.h"

#include "based/ops/framework/arguments.h"

namespace based::ops {

TopTokens top_tokens(const Tensor& logits, const Tensor& tokens, int64_t k) {
  const at::NoGradGuard no_gradients;
  const Tensor wide = logits.to(sum_type(logits));
  const auto [values, ids] = wide.topk(k, 1);
  return {ids, values - wide.gather(1, tokens.unsqueeze(1))};
}

}  // namespace based::ops
