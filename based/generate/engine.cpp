#include "based/generate/engine.h"

#include <algorithm>

namespace based {

Engine::Engine(LanguageModel& model, int64_t slots) : model_(model) {
  if (slots < 1) throw UsageError("an engine needs at least one slot, got " + std::to_string(slots));
  const torch::InferenceMode inference;
  state_ = model.make_state(slots);
  if (state_.grows()) throw UsageError("the model's state grows with the text; the engine runs models with a state of fixed size");
  const auto ids = torch::dtype(torch::kInt64).device(model.device());
  const auto reals = torch::dtype(torch::kFloat).device(model.device());
  all_slots_ = torch::arange(slots, ids);
  last_ = torch::zeros({slots}, ids);
  drawn_ = torch::zeros({slots}, ids);
  options_ = {
      state_.position(),           torch::zeros({slots}, ids),
      torch::zeros({slots}, ids),  torch::zeros({slots}, reals),
      torch::ones({slots}, reals), torch::zeros({slots}, reals),
      torch::ones({slots}, reals), torch::zeros({slots, kernels::sample_seen_words(model.config().vocab_size)}, ids.dtype(torch::kInt))};
  taken_.resize(static_cast<size_t>(slots));
  record_step();
}

void Engine::record_step() {
  step_ = record(model_.device(), [this] {
    const Tensor logits = model_.logits(model_.step(last_, state_, all_slots_));
    drawn_.copy_(ops::sample(logits.narrow(1, 0, model_.config().vocab_size), options_));
    last_.copy_(drawn_.clamp_min(0));  // −1, for logits that are not finite, is no id to look up
  });
  state_.zero(all_slots_);
  last_.zero_();
}

int64_t Engine::free_slots() const { return std::count(taken_.begin(), taken_.end(), false); }

void Engine::set_options(const Tensor& slots, const SamplingOptions& options) {
  options_.seed.index_fill_(0, slots, options.seed);
  options_.top_k.index_fill_(0, slots, options.top_k);
  options_.temperature.index_fill_(0, slots, options.temperature);
  options_.top_p.index_fill_(0, slots, options.top_p);
  options_.min_p.index_fill_(0, slots, options.min_p);
  options_.penalty.index_fill_(0, slots, options.repetition_penalty);
}

void Engine::set_seen(const Tensor& slots, const std::vector<std::vector<int64_t>>& prompts) {
  const int64_t words = options_.seen.size(1);
  const Tensor seen = torch::zeros({static_cast<int64_t>(prompts.size()), words}, torch::kInt);
  auto* row = reinterpret_cast<uint32_t*>(seen.mutable_data_ptr<int32_t>());
  for (const auto& prompt : prompts) {
    for (const int64_t id : prompt) kernels::sample_set_seen(row, id);
    row += words;
  }
  options_.seen.index_copy_(0, slots, seen.to(slots.device()));
}

std::vector<int64_t> Engine::join(const std::vector<std::vector<int64_t>>& prompts, const SamplingOptions& options) {
  check_sampling_options(options);
  if (static_cast<int64_t>(prompts.size()) > free_slots())
    throw Error("engine: " + std::to_string(prompts.size()) + " texts for " + std::to_string(free_slots()) + " free slots");
  if (prompts.empty()) return {};
  std::vector<int64_t> chosen, ids, last, starts{0};
  for (int64_t slot = 0; slot < slots() && chosen.size() < prompts.size(); ++slot)
    if (!taken_[static_cast<size_t>(slot)]) chosen.push_back(slot);
  for (const auto& prompt : prompts) {
    if (prompt.empty()) throw Error("engine: generation needs at least one token of prompt");
    for (const int64_t id : prompt)
      if (id < 0 || id >= model_.config().vocab_size)
        throw Error("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(model_.config().vocab_size));
    ids.insert(ids.end(), prompt.begin(), prompt.end() - 1);  // the last one is the first step's
    last.push_back(prompt.back());
    starts.push_back(static_cast<int64_t>(ids.size()));
  }
  const torch::InferenceMode inference;
  const torch::Device device = model_.device();
  const Tensor slots = torch::tensor(chosen).to(device);
  state_.zero(slots);
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens > 0) model_.prefill(torch::tensor(ids).to(device), Sequences::packed(starts, tokens, device), state_, slots);
  last_.index_copy_(0, slots, torch::tensor(last).to(device));
  set_options(slots, options);
  set_seen(slots, prompts);
  for (const int64_t slot : chosen) taken_[static_cast<size_t>(slot)] = true;
  return chosen;
}

void Engine::leave(int64_t slot) {
  BASED_ASSERT(slot >= 0 && slot < slots());
  taken_[static_cast<size_t>(slot)] = false;
}

void Engine::run(int64_t steps) {
  const torch::InferenceMode inference;
  for (int64_t i = 0; i < steps; ++i) step_->run();
}

const std::vector<int64_t>& Engine::step() {
  run(1);
  const Tensor drawn = drawn_.cpu();
  const int64_t* token = drawn.const_data_ptr<int64_t>();
  tokens_.assign(token, token + slots());
  for (size_t slot = 0; slot < taken_.size(); ++slot) {
    if (taken_[slot] && tokens_[slot] < 0)
      throw Error("sampling: the model's logits of slot " + std::to_string(slot) + " are not finite; its weights may be damaged");
    if (!taken_[slot]) tokens_[slot] = -1;
  }
  return tokens_;
}

}  // namespace based
