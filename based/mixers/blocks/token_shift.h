// RWKV's token shift: each token of a layer's input is mixed with the token before it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/mixers/blocks/call.h"

namespace based {

// Parameters "time_mix_<name>" [d_model]: the share of the token itself, the rest is that of the token before.
class TokenShift : public torch::nn::Module {
 public:
  explicit TokenShift(int64_t d_model);
  // Registers the parameter of `name` with RWKV-5's initial values, (channel / d_model)^power + offset.
  void add(const std::string& name, double power, double offset = 0);
  // Returns x_t · mix + x_{t−1} · (1 − mix), [tokens, d_model], for each name in the order of add(). Updates the state "shift".
  std::vector<Tensor> forward(const Tensor& x, const Call& call) const;
  StateTensor state(int64_t slots) const;  // "shift" [slots, d_model, 1]: the previous token

 private:
  int64_t d_model_;
  Tensor taps_;  // [d_model, 2]: a convolution that returns the previous token
  std::vector<Tensor> mixes_;
};

}  // namespace based
