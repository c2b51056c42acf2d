#include "based/train/run_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/core/text.h"
#include "based/models/tensor_view.h"

namespace based {
namespace {

constexpr const char* kFirstMoment = "first_moment.";
constexpr const char* kSecondMoment = "second_moment.";
constexpr const char* kSteps = "steps.";
constexpr const char* kMaster = "master.";
constexpr const char* kOrderHash = "order_hash";  // key of the file's metadata
// Tensors in files of earlier versions: states of random generators. Random numbers now depend only on the seed and the step.
constexpr std::array kObsolete{"random.cpu", "random.cuda"};

bool is_all_zero(std::span<const std::byte> bytes) {
  return !bytes.empty() && bytes[0] == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

std::vector<SavedSlot> own_slots(const AdamW& optimizer) {
  std::vector<SavedSlot> state;
  for (const AdamW::Slot& slot : optimizer.slots())
    state.push_back({slot.name, slot.has_master() ? slot.master : Tensor(), slot.first_moment, slot.second_moment, slot.steps});
  return state;
}

using ViewsByName = std::map<std::string, TensorView>;

// The moments that are all zero although their parameter was updated.
std::vector<std::string> find_zero_moments(const ViewsByName& views) {
  std::vector<std::string> zero;
  for (const auto& [name, view] : views) {
    for (const std::string prefix : {kFirstMoment, kSecondMoment}) {
      if (!name.starts_with(prefix) || !is_all_zero(view.bytes)) continue;
      const auto steps = views.find(kSteps + name.substr(prefix.size()));
      if (steps != views.end() && !is_all_zero(steps->second.bytes)) zero.push_back(name);
    }
  }
  return zero;
}

// The values of a view; they are read in the file's memory if they are aligned, and copied otherwise.
Tensor values_of(const TensorView& view) {
  const torch::Dtype dtype = torch_dtype(view.dtype);
  if (view.bytes.empty() || reinterpret_cast<uintptr_t>(view.bytes.data()) % torch::elementSize(dtype) != 0) return tensor_of(view);
  return torch::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, torch::dtype(dtype));
}

// The updates of the run, and so of each of its parameters that always had a gradient.
int64_t count_updates(const RunState& state) { return state.loop.step - state.loop.skipped; }

int64_t count_steps(const TensorView& view) { return static_cast<int64_t>(values_of(view).to(torch::kDouble).max().item<double>()); }

std::vector<std::string> find_other_steps(const ViewsByName& views, int64_t updates) {
  std::vector<std::string> other;
  for (const auto& [name, view] : views)
    if (name.starts_with(kSteps) && count_steps(view) != updates) other.push_back(name);
  return other;
}

std::string hash_of_tensors(const ViewsByName& views) {
  Hasher128 hasher;
  for (const auto& [name, view] : views) {
    if (std::find(kObsolete.begin(), kObsolete.end(), name) != kObsolete.end()) continue;
    hasher.update(std::as_bytes(std::span(name)));
    hasher.update(view.bytes);
  }
  return hasher.digest().hex();
}

ViewsByName views_by_name(const SafetensorsFile& file) {
  ViewsByName views;
  for (const TensorView& view : file.tensors()) views.emplace(view.name, view);
  return views;
}

void require_usable_moments(const ViewsByName& views, const std::string& path) {
  for (const auto& [name, view] : views) {
    if (!name.starts_with(kFirstMoment) && !name.starts_with(kSecondMoment)) continue;
    if (first_not_finite(view))
      throw Error(path + ": tensor '" + name + "' has a value that is not finite; resume from another checkpoint");
    if (name.starts_with(kSecondMoment) && !view.bytes.empty() && values_of(view).min().item<double>() < 0)
      throw Error(path + ": tensor '" + name + "', a mean of squares, has a value below 0; resume from another checkpoint");
  }
}

// The same step count, order of the data and bytes as at the save, for checkpoints of versions that recorded them.
void require_saved_tensors(const ViewsByName& views, const SafetensorsFile& file, const RunState& state) {
  if (state.optimizer_hash.empty()) return;
  const std::set<std::string> known(state.other_steps.begin(), state.other_steps.end());
  for (const std::string& name : find_other_steps(views, count_updates(state)))
    if (!known.contains(name))
      throw Error(file.path() + ": tensor '" + name + "' is " + std::to_string(count_steps(views.at(name))) + ", but trainer.json has " +
                  std::to_string(count_updates(state)) + " updates (loop.step - loop.skipped); resume from another checkpoint");
  const auto order = file.metadata().find(kOrderHash);
  if (order != file.metadata().end() && order->second != state.data.order_hash)
    throw Error(file.path() + ": was saved with order_hash = " + in_quotes(order->second) +
                ", but trainer.json has data.order_hash = " + in_quotes(state.data.order_hash) + "; resume from another checkpoint");
  if (hash_of_tensors(views) != state.optimizer_hash)
    throw Error(file.path() + ": its tensors are not those that were saved with trainer.json, which has optimizer_hash = " +
                in_quotes(state.optimizer_hash) + "; resume from another checkpoint");
}

// A moment can be zero in a whole run, such as that of a weight whose gradient is always 0. Those are listed when a checkpoint is saved, so
// any other was lost afterwards.
void require_whole_moments(const SafetensorsFile& file, const RunState& state) {
  const ViewsByName views = views_by_name(file);
  if (state.devices > 0) {
    const std::set<std::string> known(state.zero_moments.begin(), state.zero_moments.end());
    for (const std::string& name : find_zero_moments(views))
      if (!known.contains(name))
        throw Error(file.path() + ": tensor '" + name +
                    "' is all zero, and was not when the checkpoint was saved; resume from another one");
  }
  int64_t most = 0;
  for (const auto& [name, view] : views)
    if (name.starts_with(kSteps)) most = std::max(most, count_steps(view));
  const int64_t updates = count_updates(state);
  if (state.loop.step > 0 && most != updates)
    throw Error(file.path() + ": its parameters have been updated " + std::to_string(most) + " times, but trainer.json has " +
                std::to_string(updates) + " updates (loop.step - loop.skipped); resume from another one");
  require_usable_moments(views, file.path());
  require_saved_tensors(views, file, state);
}

// The rows of a step never change within a run, so the position in the data follows from the step.
void require_consistent_position(const RunState& state, const std::string& path) {
  const Config* train = state.run.find("train");
  const Config* batch = train ? train->find("batch") : nullptr;
  const auto* rows = batch ? std::get_if<int64_t>(&batch->value()) : nullptr;
  if (!rows) return;
  int64_t delivered = state.data.window;
  for (const WindowRange& range : skipped_windows(state))
    delivered -= std::max<int64_t>(0, std::min(range.last, state.data.window) - std::min(range.first, state.data.window));
  if (delivered != state.loop.step * *rows)
    throw Error(path + ": data.window is " + std::to_string(state.data.window) + ", of which " + std::to_string(delivered) +
                " windows were trained on, but " + std::to_string(state.loop.step) + " steps of " + std::to_string(*rows) + " rows use " +
                std::to_string(state.loop.step * *rows) + "; resume from another checkpoint");
}

}  // namespace

std::vector<WindowRange> skipped_windows(const RunState& state) {
  std::vector<WindowRange> ranges;
  for (const Restart& restart : state.restarts)
    if (restart.last > restart.first) ranges.push_back({restart.first, restart.last});
  std::sort(ranges.begin(), ranges.end(), [](const WindowRange& a, const WindowRange& b) { return a.first < b.first; });
  std::vector<WindowRange> merged;
  for (const WindowRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  return merged;
}

NamedTensors optimizer_tensors(AdamW& optimizer, bool sharded) {
  NamedTensors tensors;
  for (const SavedSlot& slot : sharded ? optimizer.gather_state() : own_slots(optimizer)) {
    tensors.emplace_back(kFirstMoment + slot.name, slot.first_moment.detach());
    tensors.emplace_back(kSecondMoment + slot.name, slot.second_moment.detach());
    tensors.emplace_back(kSteps + slot.name, slot.steps.detach());
    if (slot.master.defined()) tensors.emplace_back(kMaster + slot.name, slot.master.detach());
  }
  return tensors;
}

void save_run_state(const std::string& folder, RunState state, const NamedTensors& optimizer) {
  std::vector<Tensor> copies;  // the views point into them
  std::vector<TensorView> views;
  ViewsByName by_name;
  for (const auto& [name, tensor] : optimizer) {
    copies.push_back(tensor.cpu().contiguous());
    views.push_back(view_of(name, copies.back()));
    by_name.emplace(name, views.back());
  }
  state.zero_moments = find_zero_moments(by_name);
  state.other_steps = find_other_steps(by_name, count_updates(state));
  state.optimizer_hash = hash_of_tensors(by_name);
  write_safetensors(path_in(folder, "optimizer.safetensors"), views, {{kOrderHash, state.data.order_hash}});
  write_file_atomic(path_in(folder, "trainer.json"), write_config(state).to_json() + "\n");
}

void save_run_state(const std::string& folder, const RunState& state, AdamW& optimizer) {
  save_run_state(folder, state, optimizer_tensors(optimizer));
}

RunState load_run_state(const std::string& folder) {
  const std::string path = path_in(folder, "trainer.json");
  const RunState state = read_stored([&] { return read_config<RunState>(Config::parse_json_file(path)); });
  if (state.loop.step < 0 || state.metrics.metrics < 0 || state.metrics.tensorboard < 0 || state.data.window < 0) {
    throw Error(path + ": loop.step, data.window and the positions in the metrics must not be negative");
  }
  require_consistent_position(state, path);
  return state;
}

void load_optimizer(const std::string& folder, AdamW& optimizer) {
  const SafetensorsFile file(path_in(folder, "optimizer.safetensors"));
  std::vector<SavedSlot> state;
  size_t expected = 0;
  for (const AdamW::Slot& slot : optimizer.slots()) {
    const TensorView* master = file.find(kMaster + slot.name);
    state.push_back({slot.name, master ? values_of(*master) : Tensor(), values_of(file.at(kFirstMoment + slot.name)),
                     values_of(file.at(kSecondMoment + slot.name)), values_of(file.at(kSteps + slot.name))});
    expected += master ? 4 : 3;
  }
  for (const char* name : kObsolete) expected += file.find(name) != nullptr;
  if (file.tensors().size() != expected) {
    throw Error(file.path() + ": holds " + std::to_string(file.tensors().size()) + " tensors, " + std::to_string(expected) +
                " are expected for this model");
  }
  try {
    optimizer.load_state(state);
  } catch (const Error& error) {
    throw Error(file.path() + ": " + error.what());
  }
  require_whole_moments(file, load_run_state(folder));  // after the shapes, which these checks rely on
}

}  // namespace based
