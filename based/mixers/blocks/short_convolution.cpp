#include "based/mixers/blocks/short_convolution.h"

#include "based/mixers/kit/rounds.h"
#include "based/ops/conv/short_conv.h"

namespace based {

Tensor ShortConvolution::forward(const Tensor& x, const Call& call, const std::string& name) const {
  if (call.state == nullptr) return std::get<0>(ops::short_conv(x, weight(), bias(), {}, true, call.pass.cu_seqlens()));
  Tensor& state = (*call.state)[name];
  if (!call.step) return ops::short_conv_prefill(x, weight(), bias(), {}, true, call.pass.cu_seqlens(), state, call.pass.slots());
  const auto convolve = [&](const Pass& round, const Tensor& rows) {
    return ops::short_conv_step(rows, weight(), bias(), {}, true, state, round.slots());
  };
  const auto convolve_tokens = [&](const TokensOfSequence& all, const Tensor& rows) {
    return ops::short_conv_tokens(rows, weight(), bias(), {}, true, all.tokens, state, all.slot, all.kept[0]);
  };
  return step_tokens(call.pass, {state}, convolve, convolve_tokens, x);
}

StateTensor ShortConvolution::state(const std::string& name, int64_t slots) const {
  return {name, torch::zeros({slots, weight().size(0), weight().size(1) - 1}, sum_options(weight()))};
}

}  // namespace based
