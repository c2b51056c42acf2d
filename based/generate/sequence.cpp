#include "based/generate/sequence.h"

#include <array>

#include "based/generate/cells.h"
#include "based/models/finite.h"
#include "based/models/limits.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr const char* kCells = "cells";  // in a state file's metadata

// Calls `write` with the snapshot of a finite sequence. `name`: of the file, for errors.
template <class Write>
void with_snapshot(const SequenceState& sequence, const std::string& model_hash, const std::string& name, Write&& write) {
  StateSnapshot snapshot{model_hash, sequence.ids, {}, {}};
  const std::vector<StateTensor> tensors = sequence.state.named();
  std::vector<Tensor> kept;  // the views point into these
  kept.reserve(tensors.size());
  for (const auto& tensor : tensors) kept.push_back(tensor.value.cpu().contiguous());
  for (size_t i = 0; i < tensors.size(); ++i) {
    snapshot.tensors.push_back(view_of(tensors[i].name, kept[i]));
    if (first_not_finite(snapshot.tensors.back()))
      throw Error(name + ": not written: the state is not finite (" + tensors[i].name + "); the model's weights may be damaged");
  }
  if (!sequence.cells.empty()) snapshot.metadata[kCells] = sequence.cells;
  write(snapshot);
}

}  // namespace

const char* finish_name(Finish finish) {
  static constexpr std::array<const char*, 6> kNames{"none", "length", "stop", "cache_full", "positions", "not_finite"};
  return kNames.at(static_cast<size_t>(finish));
}

void require_finite_logits(LanguageModel& model, const SequenceState& sequence) {
  const torch::InferenceMode inference;
  const int64_t seen = sequence.seen(), positions = model.config().max_positions;
  if (positions > 0 && seen >= positions) return;  // the model can read no other token
  ModelState state = sequence.state.extract(0);
  const auto ids = torch::dtype(torch::kInt64).device(model.device());
  const Tensor next = torch::full({1}, sequence.ids.at(static_cast<size_t>(seen)), ids);
  require_finite_logits(model, model.step(next, state, torch::zeros({1}, ids)));
}

void save_sequence(const std::string& path, const SequenceState& sequence, const std::string& model_hash) {
  with_snapshot(sequence, model_hash, path, [&path](const StateSnapshot& snapshot) { write_state_file(path, snapshot); });
}

std::string sequence_file_content(const SequenceState& sequence, const std::string& model_hash, const std::string& name) {
  std::string content;
  with_snapshot(sequence, model_hash, name, [&](const StateSnapshot& snapshot) { content = state_file_content(snapshot, name); });
  return content;
}

SequenceState load_sequence(const std::string& path, const LanguageModel& model, const std::string& model_hash) {
  const StateFile file(path);
  file.require_model(model_hash);
  return sequence_of(file.snapshot(), model, path);
}

SequenceState sequence_of(const StateSnapshot& snapshot, const LanguageModel& model, const std::string& source) {
  const torch::InferenceMode inference;
  if (snapshot.token_ids.empty()) throw Error(source + ": the state of an empty text");
  require_ids(model.config(), snapshot.token_ids, source);
  require_positions(model.config(), static_cast<int64_t>(snapshot.token_ids.size()) - 1, source);
  std::vector<StateTensor> tensors;
  for (const auto& view : snapshot.tensors) {
    if (const auto at = first_not_finite(view))
      throw Error(source + ": tensor '" + view.name + "' is not finite (number " + std::to_string(*at) +
                  "); the model that made the state may be damaged: make it anew by a whole one");
    tensors.push_back({view.name, tensor_of(view), false});
  }
  SequenceState loaded{snapshot.token_ids, model.make_state(1)};
  try {
    loaded.state.load_named(tensors, 0);
  } catch (const Error& error) {
    throw Error(source + ": " + error.what());
  }
  const int64_t seen = loaded.seen(), most = static_cast<int64_t>(loaded.ids.size()) - 1;
  if (seen < 0 || seen > most)
    throw Error(source + ": the state has seen " + std::to_string(seen) + " tokens, where its text has " + std::to_string(most) +
                " before the last one");
  if (const auto cells = snapshot.metadata.find(kCells); cells != snapshot.metadata.end()) loaded.cells = cells->second;
  const int64_t cell = cell_tokens(model.device().type());
  if (loaded.cells == describe_cells(model) && seen % cell != 0)
    throw Error(source + ": the state has seen " + std::to_string(seen) + " tokens, which is not at the begin of a cell of " +
                std::to_string(cell));
  return loaded;
}

}  // namespace based
