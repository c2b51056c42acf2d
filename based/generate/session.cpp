#include "based/generate/session.h"

#include "based/core/state_file.h"
#include "based/models/limits.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr int64_t prefill_piece = 2048;

}  // namespace

Session::Session(LanguageModel& model)
    : model_(model), state_(model.make_state(1)), slot_(torch::zeros({1}, torch::dtype(torch::kInt64).device(model.device()))) {}

void Session::append(const std::vector<int64_t>& ids) {
  if (ids.empty()) return;
  require_ids(model_.config(), ids, "the text");
  require_positions(model_.config(), static_cast<int64_t>(ids_.size() + ids.size()) - 1, "the text");
  const torch::InferenceMode inference;
  const int64_t unseen = static_cast<int64_t>(ids_.empty() ? 0 : ids_.size() - 1);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  const Tensor all = torch::tensor(ids_).to(model_.device());
  const int64_t end = static_cast<int64_t>(ids_.size()) - 1;
  for (int64_t at = unseen; at < end; at += prefill_piece) {
    const int64_t length = std::min(prefill_piece, end - at);
    model_.prefill_last(all.narrow(0, at, length), Sequences::equal(1, length, model_.device()), state_, slot_);
  }
}

int64_t Session::next(const SamplingOptions& options) {
  if (ids_.empty()) throw Error("generation needs at least one token of prompt");
  require_positions(model_.config(), static_cast<int64_t>(ids_.size()), "the text");
  const torch::InferenceMode inference;
  const Tensor hidden = model_.step(torch::full({1}, ids_.back(), slot_.options()), state_, slot_);
  const Tensor logits = model_.logits(hidden).narrow(1, 0, model_.config().vocab_size).to(torch::kCPU, torch::kFloat).contiguous();
  ids_.push_back(sample_token({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}, options, ids_));
  return ids_.back();
}

void Session::save(const std::string& path, const std::string& model_hash) const {
  StateSnapshot snapshot{model_hash, ids_, {}, {}};
  const std::vector<StateTensor> tensors = state_.extract(0).named();
  std::vector<Tensor> kept;  // the views point into these
  kept.reserve(tensors.size());
  for (const auto& tensor : tensors) kept.push_back(tensor.value.cpu().contiguous());
  for (size_t i = 0; i < tensors.size(); ++i) snapshot.tensors.push_back(view_of(tensors[i].name, kept[i]));
  write_state_file(path, snapshot);
}

void Session::load(const std::string& path, const std::string& model_hash) {
  const torch::InferenceMode inference;
  const StateFile file(path);
  file.require_model(model_hash);
  const StateSnapshot& snapshot = file.snapshot();
  const int64_t expected = std::max<int64_t>(0, static_cast<int64_t>(snapshot.token_ids.size()) - 1);
  require_ids(model_.config(), snapshot.token_ids, path);
  require_positions(model_.config(), expected, path);
  std::vector<StateTensor> tensors;
  for (const auto& view : snapshot.tensors) tensors.push_back({view.name, tensor_of(view), false});
  ModelState state = model_.make_state(1);
  try {
    state.load_named(tensors, 0);
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
  const int64_t seen = state.position()[0].item<int64_t>();
  if (seen != expected)
    throw Error(path + ": the state has seen " + std::to_string(seen) + " tokens, its text has " +
                std::to_string(snapshot.token_ids.size()));
  state_ = std::move(state);
  ids_ = snapshot.token_ids;
}

}  // namespace based
