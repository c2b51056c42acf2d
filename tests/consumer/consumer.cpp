// An external program that uses the library: it registers its own mixer, builds a small model with it and decodes some steps.
#include <cstdio>

#include "based/models/language_model.h"
#include "decayed_sum.h"

int main() {
  based::register_mixer(mixer_info_decayed_sum());
  torch::NoGradGuard no_gradients;
  based::ModelConfig config;
  config.d_model = 64;
  config.layers = {"gated_conv", "taylor_attention", "decayed_sum", "sliding_window"};
  based::LanguageModel model(config);
  based::ModelState state = model.make_state(1);
  const torch::Tensor slot = torch::zeros({1}, torch::kInt64);
  for (int64_t id = 0; id < 5; ++id) model.step(torch::full({1}, id, torch::kInt64), state, slot);
  std::printf("%lld tokens, %lld bytes of state\n", static_cast<long long>(state.position()[0].item<int64_t>()),
              static_cast<long long>(state.bytes()));
  return state.position()[0].item<int64_t>() == 5 ? 0 : 1;
}
