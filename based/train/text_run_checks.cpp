#include "based/train/text_run_checks.h"

#include <algorithm>
#include <map>
#include <set>

#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/core/log.h"
#include "based/models/weights.h"
#include "based/parallel/agree.h"

namespace based {
namespace {

using Leaves = std::map<std::string, std::string>;  // dotted key -> its value as JSON

void collect_leaves(const Config& config, const std::string& path, Leaves& leaves) {
  if (!config.is_table()) {
    leaves[path] = config.to_json(-1);
    return;
  }
  for (const auto& [key, value] : std::get<Config::Table>(config.value())) {
    collect_leaves(value, path.empty() ? key : path + "." + key, leaves);
  }
}

// Paths of the data and weights that a run begins with.
bool names_data(const std::string& key) {
  static const std::set<std::string> paths{"data.train", "data.sets", "data.valid", "data.tokenizer", "train.start"};
  return paths.contains(key);
}

// True for keys that change weights and metrics only by rounding, and for paths: the tokens' hash is compared instead, and the weights of
// train.start are those of step 0.
bool may_change(const std::string& key) {
  static const std::set<std::string> free{"train.device",    "train.accumulate",    "train.shard",
                                          "train.bucket_mb", "train.max_bad_steps", "train.checkpoint_activations"};
  return names_data(key) || free.contains(key) || key.starts_with("checkpoint.");
}

constexpr std::string_view kIs = " = ";

// A line for each key, after a line break.
std::string text_of_keys(const TextRun& run) {
  Leaves leaves;
  collect_leaves(write_config(run), "", leaves);
  std::string text = "\n";
  for (const auto& [key, value] : leaves)
    if (!names_data(key)) text += key + std::string(kIs) + value + "\n";
  return text;
}

// The key of the first line of the first text in which another text differs from it.
std::string first_other_key(const std::vector<std::string>& texts) {
  const std::string& first = texts[0];
  size_t at = first.size() - 1;
  for (const std::string& text : texts) {
    const auto other = std::mismatch(first.begin(), first.end(), text.begin(), text.end()).first;
    at = std::min(at, static_cast<size_t>(other - first.begin()));
  }
  const size_t line = first.rfind('\n', at - 1) + 1;
  return first.substr(line, first.find(kIs, line) - line);
}

// The keys of a saved run. Keys that are newer than the saved file get their defaults and are listed in `added`.
Leaves leaves_of(const Config& saved, std::string& added) {
  TextRun none;
  none.model = write_config(ModelConfig{});
  Leaves leaves, defaults;
  collect_leaves(saved, "", leaves);
  collect_leaves(write_config(none), "", defaults);
  for (const auto& [key, value] : defaults)
    if (leaves.try_emplace(key, value).second) added += (added.empty() ? "" : ", ") + key + " = " + value;
  return leaves;
}

// Throws UsageError naming the first key in which the resumed run differs from the saved one.
void require_same_run(const Leaves& before, const Leaves& now, const std::string& out) {
  Leaves after = now;
  for (const auto& [key, value] : before) after.try_emplace(key, "absent");
  for (const auto& [key, value] : after) {
    const auto found = before.find(key);
    const std::string was = found == before.end() ? "absent" : found->second;
    if (was == value || may_change(key)) continue;
    throw UsageError("--resume: " + key + " is " + value + ", the run in " + out + " has " + was +
                     ": it would not be the same run; put the key back, or train into another folder");
  }
}

// The weights of the sets decide the order of the data, so a change of them alone changes its hash too.
void require_same_weights(const Json& before, const Json& now, const std::string& out) {
  for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    const Json &was = before.at(i).at("weight"), &weight = now.at(i).at("weight");
    if (was.get<double>() == weight.get<double>()) continue;
    throw UsageError("--resume: data.sets: the weight of " + now.at(i).at("path").get<std::string>() + " is " + weight.dump() +
                     ", the run in " + out + " has " + was.dump() +
                     ": it would not be the same run; put the weight back, or train into another folder");
  }
}

std::string text_of(const WindowRange& range) { return std::to_string(range.first) + ".." + std::to_string(range.last); }

std::string count_of_devices(int64_t count) { return std::to_string(count) + (count == 1 ? " device" : " devices"); }

// Logs differences that leave values and windows as they are and change how sums are rounded.
void log_rounding(const RunState& state, const Leaves& before, const Leaves& now, const ResumedRun& resumed) {
  const int64_t devices = std::max<int64_t>(1, state.devices);
  const std::string &parts = before.at("train.accumulate"), &parts_now = now.at("train.accumulate");
  if (devices != resumed.ranks || parts != parts_now) {
    log_info("the run was saved on " + count_of_devices(devices) + " with train.accumulate = " + parts + " and continues on " +
             count_of_devices(resumed.ranks) + " with " + parts_now +
             ": the windows of each step are the same, and sums may round differently");
  }
  const std::string &device = before.at("train.device"), &device_now = now.at("train.device");
  if (device != device_now) {
    log_warning("the run began on " + device + " and continues on " + device_now +
                ": weights, moments and data are the same, but sums round differently, and dropout draws other numbers");
  } else if (resumed.device.is_cpu() && state.threads != torch::get_num_threads()) {
    log_warning("the run began with " + std::to_string(state.threads) + " threads and continues with " +
                std::to_string(torch::get_num_threads()) + ": sums may round differently; OMP_NUM_THREADS sets the number");
  }
}

}  // namespace

void check_run(const TextRun& run, int64_t ranks) {
  const auto require = [](bool right, const std::string& what) {
    if (!right) throw UsageError(what);
  };
  check_optimizer_options(run.optimizer);
  require(!run.data.train.empty() || !run.data.sets.empty(), "data.train names no text");
  require(run.data.valid_fraction > 0 && run.data.valid_fraction < 1, "data.valid_fraction must be above 0 and below 1");
  require(run.train.steps >= 1 && run.train.batch >= 1 && run.train.length >= 1,
          "train.steps, train.batch and train.length must be at least 1");
  require(
      run.train.accumulate >= 1 && run.train.batch % run.train.accumulate == 0 && run.train.batch / run.train.accumulate % ranks == 0,
      "train.batch must be a multiple of train.accumulate times the number of devices, so that all parts of a step have the same rows: " +
          std::to_string(run.train.batch) + " rows, " + std::to_string(run.train.accumulate) + " parts, " + std::to_string(ranks) +
          " devices");
  require(run.train.precision == "fp32" || run.train.precision == "bf16", "train.precision must be fp32 or bf16");
  require(run.train.evaluate_every >= 0 && run.train.evaluate_batches >= 1 && run.train.log_every >= 1,
          "train.evaluate_every must not be negative; train.evaluate_batches and train.log_every must be at least 1");
  require(run.train.bucket_mb >= 0 && run.train.bucket_mb <= 1 << 20, "train.bucket_mb must be 0 to 1048576");
  for (const int64_t threshold : run.train.slices) require(threshold >= 0, "train.slices: a threshold must not be negative");
  require(run.train.max_bad_steps >= 1, "train.max_bad_steps must be at least 1");
  require(!run.train.graph || !run.data.documents, "train.graph needs rows that are all alike: leave it, or data.documents, off");
  require(!run.train.graph || !run.train.checkpoint_activations,
          "train.graph cannot record train.checkpoint_activations, which draws its random numbers again: leave one of them off");
  require(run.train.batch <= INT32_MAX / run.train.length, "train.batch times train.length must be below 2^31 tokens");
  require(run.checkpoint.every >= 0, "checkpoint.every must not be negative");
  require(run.checkpoint.keep >= 1, "checkpoint.keep must be at least 1");
}

void check_before_start(const TextRun& run, int64_t ranks) {
  check_run(run, ranks);
  check_model_table(run);
  check_text_data(run.data);
}

void check_model_table(const TextRun& run) {
  if (!run.model.is_null() || run.train.start.empty()) checked_model_keys(run, {});
}

Config checked_model_keys(const TextRun& run, const std::string& start) {
  const Config keys = run.model.is_null() && !start.empty() ? write_config(read_model_files(start).config) : model_table(run.model);
  const int64_t positions = read_model_config(keys).max_positions;
  if (positions > 0 && run.train.length > positions) {
    throw UsageError("train.length = " + std::to_string(run.train.length) +
                     " is more than model.max_positions = " + std::to_string(positions) + ", the positions that the model learns");
  }
  return keys;
}

ModelConfig checked_start(const TextRun& run, const Tokenizer& tokenizer) {
  const std::string& start = run.train.start;
  const ModelFiles files = read_model_files(start);
  require_full_weights(files, "training");
  if (files.tokenizer && *files.tokenizer != hex(tokenizer.hash()))
    throw UsageError("data.tokenizer = " + run.data.tokenizer + ": is not the tokenizer of train.start, " + start +
                     "; give the folder of its tokenizer, which is " + start + " itself if it holds one");
  if (!files.tokenizer)
    log_warning(files.weights_path + ": does not record its tokenizer; that it is data.tokenizer = " + run.data.tokenizer +
                " is not checked");
  return files.config;
}

void agree_on_keys(Collectives& ranks, const TextRun& run) {
  const std::string own = text_of_keys(run), hash = xxh3_128(std::as_bytes(std::span(own))).hex();
  const std::vector<std::string> hashes = ranks.gather_text(hash);
  if (std::all_of(hashes.begin(), hashes.end(), [&](const std::string& other) { return other == hashes[0]; })) return;
  const std::string key = first_other_key(ranks.gather_text(own));
  const size_t line = own.find("\n" + key + std::string(kIs));
  const size_t value = line + 1 + key.size() + kIs.size();
  agree(ranks, "the configuration, first in " + key,
        line == std::string::npos ? "absent" : own.substr(value, own.find('\n', value) - value));
  agree(ranks, "the configuration", hash);
}

RunState load_resumed_state(const ResumedRun& resumed) {
  RunState state = load_run_state(resumed.from);
  std::string added;
  const Leaves before = leaves_of(state.run, added);
  Leaves now;
  collect_leaves(write_config(resumed.run), "", now);
  if (!added.empty()) log_info("--resume: the run was saved before these keys existed, which get their defaults: " + added);
  require_same_run(before, now, resumed.out);
  if (state.data_hash != resumed.data_hash) {
    require_same_weights(parse_json(before.at("data.sets"), resumed.from), parse_json(now.at("data.sets"), resumed.out), resumed.out);
    throw UsageError("--resume: the tokens of data.train or data.valid (" + training_paths(resumed.run.data) +
                     ") are not those that the run began with; put the text back, or train into another folder");
  }
  log_rounding(state, before, now, resumed);
  return state;
}

void add_restart(RunState& state, const std::vector<WindowRange>& skip, int64_t windows) {
  for (const WindowRange& range : skip) {
    const std::string text = "--skip-windows " + text_of(range);
    if (range.first < 0 || range.last <= range.first) throw UsageError(text + ": must be A..B with 0 <= A < B");
    if (range.first < state.data.window) {
      throw UsageError(text + ": the checkpoint of step " + std::to_string(state.loop.step) + " was saved after " +
                       std::to_string(state.data.window) +
                       " windows, so the first to skip must be at least this number; --resume-from an "
                       "earlier step, or skip fewer windows");
    }
    int64_t places = windows;
    for (const WindowRange& before : skipped_windows(state)) places += before.last - before.first;
    if (range.last > places)
      throw UsageError(text + ": the whole run (train.steps times train.batch, and the windows skipped before) has the places 0 to " +
                       std::to_string(places - 1) + "; skip windows among them");
    state.restarts.push_back({state.loop.step, range.first, range.last});
  }
  if (skip.empty()) state.restarts.push_back({state.loop.step, 0, 0});
}

std::string dropped_windows(const RunState& later, const RunState& returned) {
  const std::vector<WindowRange> kept = skipped_windows(returned);
  std::string flags;
  for (const WindowRange& range : skipped_windows(later)) {
    const bool covered = std::any_of(kept.begin(), kept.end(),
                                     [&](const WindowRange& other) { return other.first <= range.first && range.last <= other.last; });
    if (!covered) flags += (flags.empty() ? "--skip-windows " : " --skip-windows ") + text_of(range);
  }
  return flags;
}

}  // namespace based
