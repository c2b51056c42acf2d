// Makes a small model from a preset's parts and steps it from its state: what the README shows, against the installed package.
#include <cstdio>

#include "based/models/language_model.h"

int main() {
  torch::NoGradGuard no_gradients;
  based::ModelConfig config;
  config.d_model = 64;
  config.layers = {"gated_conv", "taylor_attention", "sliding_window"};
  based::LanguageModel model(config);
  based::ModelState state = model.make_state(1);
  const torch::Tensor slot = torch::zeros({1}, torch::kInt64);
  for (int64_t id = 0; id < 5; ++id) model.step(torch::full({1}, id, torch::kInt64), state, slot);
  std::printf("%lld tokens, %lld bytes of state\n", static_cast<long long>(state.position()[0].item<int64_t>()),
              static_cast<long long>(state.bytes()));
  return state.position()[0].item<int64_t>() == 5 ? 0 : 1;
}
