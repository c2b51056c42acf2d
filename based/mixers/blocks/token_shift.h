// RWKV's token shift: layers see each token mixed with the one before it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/mixers/blocks/call.h"

namespace based {

// Parameters "time_mix_<name>" [d_model] in (0, 1): the share of the token itself.
class TokenShift : public torch::nn::Module {
 public:
  explicit TokenShift(int64_t d_model);
  // d_model numbers ((channel / d_model)^power + offset) for `name`; as RWKV-5 sets them.
  void add(const std::string& name, double power, double offset = 0);
  // One tensor for each name, in the order of adding: x_t · mix + x_{t−1} · (1 − mix), [tokens, d_model]. The state "shift" goes on.
  std::vector<Tensor> forward(const Tensor& x, const Call& call) const;
  StateTensor state(int64_t slots) const;  // "shift" [slots, d_model, 1]: the token before

 private:
  int64_t d_model_;
  Tensor taps_;  // [d_model, 2]: the convolution that gives the token before
  std::vector<Tensor> mixes_;
};

}  // namespace based
