// Models and token sequences for the tests of generation, and reference continuations.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "based/generate/session.h"

namespace based {

// Weights larger than initial ones, so that rounding does not change the most likely token.
inline std::shared_ptr<LanguageModel> distinct_model(torch::DeviceType device, const std::string& preset = "based-tiny") {
  torch::manual_seed(5);
  auto model = std::make_shared<LanguageModel>(find_preset(preset));
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.mul_(4);
  model->to(device);
  model->eval();
  return model;
}

inline std::vector<int64_t> some_text(int64_t length, int64_t start) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((start + 7 * i) % 257);
  return ids;
}

// Runs the model's parallel form over the whole sequence for every token, without a state or an engine.
inline std::vector<int64_t> greedy_text(LanguageModel& model, std::vector<int64_t> text, int64_t tokens) {
  const torch::InferenceMode inference;
  const auto prompt = static_cast<int64_t>(text.size());
  for (int64_t i = 0; i < tokens; ++i) {
    const auto length = static_cast<int64_t>(text.size());
    const Tensor hidden = model.forward(torch::tensor(text).to(model.device()), Sequences::equal(1, length, model.device()));
    const Tensor logits = model.logits(hidden.narrow(0, length - 1, 1)).narrow(1, 0, model.config().vocab_size);
    text.push_back(logits.argmax(1).item<int64_t>());
  }
  return {text.begin() + prompt, text.end()};
}

inline std::vector<int64_t> session_text(LanguageModel& model, const std::vector<int64_t>& text, int64_t tokens,
                                         const SamplingOptions& options) {
  Session session(model);
  session.append(text);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(session.next(options));
  return ids;
}

// Makes up to `steps` steps, until all sequences have ended, and returns the sampled tokens of each sequence.
inline std::map<int64_t, std::vector<int64_t>> tokens_of(Engine& engine, int64_t steps = 10000) {
  std::map<int64_t, std::vector<int64_t>> tokens;
  for (int64_t i = 0; i < steps && !engine.idle(); ++i)
    for (const Engine::Output& drawn : engine.step())
      if (drawn.token >= 0) tokens[drawn.sequence].push_back(drawn.token);
  return tokens;
}

inline const SamplingOptions kGreedy{0};
inline const SamplingOptions kDrawn{0.8, 40, 0.95, 0.01, 1.3, 7};

}  // namespace based
