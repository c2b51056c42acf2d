#include "based/generate/engine.h"

#include <algorithm>

#include "based/ops/recorded_step.h"

namespace based {

Engine::Engine(LanguageModel& model, int64_t slots, int64_t max_tokens) : model_(model) {
  if (slots < 1) throw UsageError("an engine needs at least one slot, got " + std::to_string(slots));
  const torch::InferenceMode inference;
  state_ = model.make_state(slots);
  if (state_.grows()) {
    if (max_tokens < 1)
      throw UsageError("the model's state grows with the text: max_tokens must say how many tokens all texts may have, got " +
                       std::to_string(max_tokens));
    pages_.emplace(slots, max_tokens, model.device());
    state_.use_pages(pages_->pages(), pages_->size());
  }
  model.prepare_for_steps(state_);
  const auto ids = torch::dtype(torch::kInt64).device(model.device());
  const auto reals = torch::dtype(torch::kFloat).device(model.device());
  all_slots_ = torch::arange(slots, ids);
  last_ = torch::zeros({slots}, ids);
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
    const ops::RecordedStep recorded;
    const Tensor logits = model_.logits(model_.step(last_, state_, all_slots_));
    ops::sample_(last_, logits.narrow(1, 0, model_.config().vocab_size), options_);
  });
  state_.zero(all_slots_);
  last_.zero_();
}

int64_t Engine::state_bytes() const { return state_.bytes() + (pages_ ? static_cast<int64_t>(pages_->pages().table.nbytes()) : 0); }

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

std::vector<int64_t> Engine::check_prompts(const std::vector<std::vector<int64_t>>& prompts) const {
  if (static_cast<int64_t>(prompts.size()) > free_slots())
    throw Error("engine: " + std::to_string(prompts.size()) + " texts for " + std::to_string(free_slots()) + " free slots");
  int64_t tokens = 0;
  for (const auto& prompt : prompts) {
    if (prompt.empty()) throw Error("engine: generation needs at least one token of prompt");
    for (const int64_t id : prompt)
      if (id < 0 || id >= model_.config().vocab_size)
        throw Error("token id " + std::to_string(id) + " is outside the vocabulary of " + std::to_string(model_.config().vocab_size));
    tokens += static_cast<int64_t>(prompt.size());
  }
  if (pages_ && tokens > pages_->free_tokens())
    throw UsageError("the prompts have " + std::to_string(tokens) + " tokens, and of the engine's max_tokens " +
                     std::to_string(pages_->free_tokens()) + " are free: give a larger max_tokens, or let texts leave first");
  std::vector<int64_t> chosen;
  for (int64_t slot = 0; slot < slots() && chosen.size() < prompts.size(); ++slot)
    if (!taken_[static_cast<size_t>(slot)]) chosen.push_back(slot);
  return chosen;
}

void Engine::read_prompts(const std::vector<std::vector<int64_t>>& prompts, const Tensor& slots) {
  std::vector<int64_t> ids, last, starts{0};
  for (const auto& prompt : prompts) {
    ids.insert(ids.end(), prompt.begin(), prompt.end() - 1);  // the last one is the first step's
    last.push_back(prompt.back());
    starts.push_back(static_cast<int64_t>(ids.size()));
  }
  const torch::Device device = model_.device();
  state_.zero(slots);
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens > 0) model_.prefill_last(torch::tensor(ids).to(device), Sequences::packed(starts, tokens, device), state_, slots);
  last_.index_copy_(0, slots, torch::tensor(last).to(device));
}

std::vector<int64_t> Engine::join(const std::vector<std::vector<int64_t>>& prompts, const SamplingOptions& options) {
  check_sampling_options(options);
  if (prompts.empty()) return {};
  const std::vector<int64_t> chosen = check_prompts(prompts);
  const torch::InferenceMode inference;
  const Tensor slots = torch::tensor(chosen).to(model_.device());
  for (size_t i = 0; pages_ && i < chosen.size(); ++i) pages_->hold(chosen[i], static_cast<int64_t>(prompts[i].size()) - 1);
  if (pages_) pages_->upload();
  try {
    read_prompts(prompts, slots);
  } catch (...) {  // out of memory
    for (size_t i = 0; pages_ && i < chosen.size(); ++i) pages_->release(chosen[i]);
    throw;
  }
  set_options(slots, options);
  set_seen(slots, prompts);
  for (const int64_t slot : chosen) taken_[static_cast<size_t>(slot)] = true;
  return chosen;
}

void Engine::leave(int64_t slot) {
  BASED_ASSERT(slot >= 0 && slot < slots());
  taken_[static_cast<size_t>(slot)] = false;
  if (pages_) pages_->release(slot);
}

void Engine::give_pages() {
  const int64_t texts = slots() - free_slots();
  if (texts > pages_->free_tokens())
    throw UsageError("the engine's texts have max_tokens tokens, and " + std::to_string(texts) +
                     " more do not fit: give a larger max_tokens, or let a text leave");
  for (int64_t slot = 0; slot < slots(); ++slot)
    if (taken_[static_cast<size_t>(slot)]) pages_->hold(slot, pages_->tokens(slot) + 1);
  pages_->upload();
}

void Engine::run(int64_t steps) {
  const torch::InferenceMode inference;
  for (int64_t i = 0; i < steps; ++i) {
    if (pages_) give_pages();
    step_->run();
  }
}

const std::vector<int64_t>& Engine::step() {
  run(1);
  const Tensor drawn = last_.cpu();
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
