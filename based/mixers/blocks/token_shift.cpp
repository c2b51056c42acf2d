#include "based/mixers/blocks/token_shift.h"

#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/conv/short_conv.h"

namespace based {

TokenShift::TokenShift(int64_t d_model) : d_model_(d_model) {
  const Tensor only_before = torch::tensor({1.0F, 0.0F}).to(parameter_device());
  taps_ = register_buffer("taps", only_before.expand({d_model, 2}).contiguous());
}

void TokenShift::add(const std::string& name, double power, double offset) {
  const Tensor channel = torch::arange(d_model_, torch::kFloat).to(parameter_device()) / d_model_;
  mixes_.push_back(register_parameter("time_mix_" + name, channel.pow(power) + offset));
}

std::vector<Tensor> TokenShift::forward(const Tensor& x, const Call& call) const {
  Tensor before;
  if (call.state == nullptr) {
    before = std::get<0>(ops::short_conv(x, taps_, {}, {}, false, call.pass.cu_seqlens()));
  } else {
    Tensor& state = (*call.state)["shift"];
    const auto shift = [&](const Pass& round, const Tensor& rows) {
      return ops::short_conv_step(rows, taps_, {}, {}, false, state, round.slots());
    };
    before = call.step ? step_in_rounds(call.pass, {state}, shift, x)
                       : ops::short_conv_prefill(x, taps_, {}, {}, false, call.pass.cu_seqlens(), state, call.pass.slots());
  }
  const Tensor change = x - before;
  std::vector<Tensor> mixed;
  for (const Tensor& mix : mixes_) mixed.push_back(before + change * mix);
  return mixed;
}

StateTensor TokenShift::state(int64_t slots) const { return {"shift", torch::zeros({slots, d_model_, 1}, sum_options(mixes_.front()))}; }

}  // namespace based
