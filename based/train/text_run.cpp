#include "based/train/text_run.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/output_folder.h"
#include "based/core/temporaries.h"
#include "based/models/device.h"
#include "based/models/vocabulary_size.h"
#include "based/models/weights.h"
#include "based/train/checkpoints.h"
#include "based/train/run_state.h"

namespace based {
namespace {

namespace fs = std::filesystem;

void check_run(const TextRun& run) {
  const auto require = [](bool right, const char* what) {
    if (!right) throw UsageError(what);
  };
  check_optimizer_options(run.optimizer);
  require(!run.data.train.empty(), "data.train names no text");
  require(run.data.valid_fraction > 0 && run.data.valid_fraction < 1, "data.valid_fraction must be above 0 and below 1");
  require(run.train.steps >= 1 && run.train.batch >= 1 && run.train.length >= 1,
          "train.steps, train.batch and train.length must be at least 1");
  require(run.train.accumulate >= 1 && run.train.batch % run.train.accumulate == 0, "train.batch must be a multiple of train.accumulate");
  require(run.train.precision == "fp32" || run.train.precision == "bf16", "train.precision must be fp32 or bf16");
  require(run.train.evaluate_every >= 0 && run.train.evaluate_batches >= 1 && run.train.log_every >= 1,
          "train.evaluate_every must not be negative; train.evaluate_batches and train.log_every must be at least 1");
  require(run.train.max_bad_steps >= 1, "train.max_bad_steps must be at least 1");
  require(!run.train.graph || !run.data.documents, "train.graph needs rows that are all alike: leave it, or data.documents, off");
  require(!run.train.graph || !run.train.checkpoint_activations,
          "train.graph cannot record train.checkpoint_activations, which draws its random numbers again: leave one of them off");
  require(run.train.batch <= INT32_MAX / run.train.length, "train.batch times train.length must be below 2^31 tokens");
  require(run.checkpoint.every >= 0, "checkpoint.every must not be negative");
  require(run.checkpoint.keep >= 1, "checkpoint.keep must be at least 1");
}

void collect_leaves(const Config& config, const std::string& path, std::map<std::string, std::string>& leaves) {
  if (!config.is_table()) {
    leaves[path] = config.to_json(-1);
    return;
  }
  for (const auto& [key, value] : std::get<Config::Table>(config.value())) {
    collect_leaves(value, path.empty() ? key : path + "." + key, leaves);
  }
}

// True for keys that change weights and metrics only by rounding, and for the data's paths: the tokens' hash is compared instead.
bool may_change(const std::string& key) {
  static const std::set<std::string> free{"data.train", "data.valid", "data.tokenizer", "train.device", "train.max_bad_steps"};
  return free.contains(key) || key.starts_with("checkpoint.");
}

using Leaves = std::map<std::string, std::string>;  // dotted key -> its value as JSON

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
void require_same_run(const Leaves& before, const Config& now, const std::string& out) {
  Leaves after;
  collect_leaves(now, "", after);
  for (const auto& [key, value] : before) after.try_emplace(key, "absent");
  for (const auto& [key, value] : after) {
    const auto found = before.find(key);
    const std::string was = found == before.end() ? "absent" : found->second;
    if (was == value || may_change(key)) continue;
    throw UsageError("--resume: " + key + " is " + value + ", the run in " + out + " has " + was +
                     ": it would not be the same run; put the key back, or train into another folder");
  }
}

// The keys of [model], checked for unknown keys and values out of range; vocab_size is not known yet.
Config model_keys(const TextRun& run) {
  const Config keys = model_table(run.model);
  const int64_t positions = read_model_config(keys).max_positions;
  if (positions > 0 && run.train.length > positions) {
    throw UsageError("train.length = " + std::to_string(run.train.length) +
                     " is more than model.max_positions = " + std::to_string(positions) + ", the positions that the model learns");
  }
  return keys;
}

std::string hex_hash(const TextData& data) { return hex(data.train->hash()) + hex(data.valid->hash()); }

class TextTraining {
 public:
  TextTraining(const TextRun& run, const std::string& out)
      : run_(run),
        out_(out),
        device_(parse_device(run.train.device, "train.device")),
        model_keys_(model_keys(run)),
        lock_(out),
        checkpoints_((fs::path(out) / "checkpoints").string(), run.checkpoint.keep) {}

  TextRunResult run(bool resume, bool overwrite) {
    find_checkpoint(resume);
    if (from_.empty()) require_free(out_, {.own = {model_holding()}}, overwrite);
    data_ = load_text_data(run_.data, run_.train.length, from_);
    set_vocabulary_size(model_keys_, data_.tokenizer->vocab_size(), "the tokenizer (data.tokenizer = " + run_.data.tokenizer + ")");
    const ModelConfig config = read_model_config(model_keys_);
    run_.model = write_config(config);
    if (!from_.empty()) state_ = checked_state();
    if (from_.empty() && !holds_this_tokenizer()) require_free(out_, {.own = {tokenizer_holding()}}, overwrite);
    loader_ = std::make_unique<Loader>(data_.train, loader_config(run_.train.batch / run_.train.accumulate));
    loader_->seek(state_.data);
    make_model(config);
    if (from_.empty()) remove_model();
    prepare_folder();
    return train();
  }

 private:
  void find_checkpoint(bool resume) {
    const bool there = !checkpoints_.steps().empty();
    if (there && !resume) {
      throw UsageError(out_ + ": holds the checkpoints of a run; --resume continues it, another --out starts a new one");
    }
    if (resume && !there) log_info("--resume: no checkpoint in " + out_ + " yet; the run starts from step 0");
    if (!there) return;
    result_.resumed_from = *checkpoints_.newest_whole();
    from_ = checkpoints_.path(result_.resumed_from);
    log_info("resuming from step " + std::to_string(result_.resumed_from) + ", " + from_);
  }

  std::string in_out(const char* name) const { return (fs::path(out_) / name).string(); }

  // Whether the tokenizer in the output folder equals this run's, so that writing it replaces nothing.
  bool holds_this_tokenizer() const {
    try {
      return make_tokenizer(out_)->hash() == data_.tokenizer->hash();
    } catch (const Error&) {  // there is none, or it cannot be read
      return false;
    }
  }

  // Called before training, so that the folder never holds an old model together with this run's files.
  void remove_model() const {
    if (held(out_, model_holding()).empty()) return;
    log_info("--overwrite: the model in " + out_ + " is removed");
    for (const std::string& name : model_holding().names) remove_file(in_out(name.c_str()));
  }

  RunState checked_state() const {
    RunState state = load_run_state(from_);
    std::string added;
    Leaves before = leaves_of(state.run, added);
    if (!added.empty()) log_info("--resume: the run was saved before these keys existed, which get their defaults: " + added);
    require_same_run(before, write_config(run_), out_);
    if (state.data_hash != hex_hash(data_)) {
      throw UsageError("--resume: the tokens of data.train or data.valid (" + run_.data.train +
                       ") are not those that the run began with; put the text back, or train into another folder");
    }
    const Config here(run_.train.device);
    if (before["train.device"] != here.to_json(-1)) {
      log_warning("the run began on " + before["train.device"] + " and continues on " + here.to_json(-1) +
                  ": weights, moments and data are the same, but sums round differently, and dropout draws other numbers");
    } else if (device_.is_cpu() && state.threads != torch::get_num_threads()) {
      log_warning("the run began with " + std::to_string(state.threads) + " threads and continues with " +
                  std::to_string(torch::get_num_threads()) + ": sums may round differently; OMP_NUM_THREADS sets the number");
    }
    return state;
  }

  LoaderConfig loader_config(int64_t rows) const {
    LoaderConfig config;
    config.length = run_.train.length;
    config.batch = rows;
    config.seed = run_.train.seed;
    config.documents = run_.data.documents;
    return config;
  }

  void make_model(const ModelConfig& config) {
    // Seeds the generators of all devices.
    torch::manual_seed(generator_seed(run_.train.seed, state_.loop.step));
    if (from_.empty()) {
      result_.model = std::make_shared<LanguageModel>(config);
      result_.model->to(device_, run_.train.precision == "bf16" ? torch::kBFloat16 : torch::kFloat);
    } else {
      result_.model = load_model(from_, {}, device_).model;
    }
    result_.model->set_checkpoint_activations(run_.train.checkpoint_activations);
    optimizer_ = std::make_unique<AdamW>(*result_.model, run_.optimizer);
    if (!from_.empty()) load_optimizer(from_, *optimizer_);
    result_.parameters = result_.model->parameter_count();
    result_.train_tokens = data_.train->tokens();
    result_.valid_tokens = data_.valid->tokens();
    log_info("training " + std::to_string(result_.parameters) + " parameters on " + std::to_string(result_.train_tokens) + " tokens of " +
             run_.data.train + ", " + std::to_string(result_.valid_tokens) + " held out");
  }

  void prepare_folder() {
    checkpoints_.sweep();
    remove_stale_temporaries(out_);
    write_file_atomic(in_out("run.json"), write_config(run_).to_json() + "\n");
    metrics_ = std::make_unique<Metrics>(out_, from_.empty() ? std::nullopt : std::optional(state_.metrics));
    sync_folder(out_);
  }

  void save(const LoopState& loop) {
    checkpoints_.save(loop.step, run_.checkpoint.best ? loop.best_step : -1, [&](const std::string& folder) {
      RunState state;
      state.loop = loop;
      state.data = loader_->position();
      state.metrics = metrics_->position();
      state.data_hash = hex_hash(data_);
      state.threads = torch::get_num_threads();
      state.run = write_config(run_);
      save_model(*result_.model, folder, data_.tokenizer->hash());
      data_.tokenizer->save(folder);
      save_run_state(folder, state, *optimizer_);
    });
    result_.checkpoint = checkpoints_.path(loop.step);
  }

  // Every evaluation uses the same held-out windows, each at most once.
  Figures evaluate() {
    const torch::NoGradGuard no_grad;
    const int64_t windows = (data_.valid->tokens() - 1) / run_.train.length, rows = std::min(run_.train.batch, windows);
    Loader loader(data_.valid, loader_config(rows));
    double nats = 0, count = 0;
    for (int64_t i = 0; i < std::min(run_.train.evaluate_batches, windows / rows); ++i) {
      const Batch batch = to_batch(loader.next(), device_);
      const auto labels = static_cast<double>(batch.labelled);
      if (labels == 0) continue;
      nats += result_.model->evaluation_nats(batch.ids, batch.labels, batch.rows);
      count += labels;
    }
    return {{"loss", nats / count}, {"perplexity", std::exp(nats / count)}};
  }

  TextRunResult train() {
    const InterruptScope interrupts;
    LoopOptions options;
    options.steps = run_.train.steps;
    options.accumulate = run_.train.accumulate;
    options.evaluate_every = run_.train.evaluate_every;
    options.checkpoint_every = run_.checkpoint.every;
    options.checkpoint_best = run_.checkpoint.best;
    options.log_every = run_.train.log_every;
    options.max_bad_steps = run_.train.max_bad_steps;
    options.step = {.recordings = run_.train.graph ? 1 : 0, .seed = run_.train.seed};
    if (!from_.empty()) options.weights_file = (fs::path(from_) / "model.safetensors").string();
    LoopHooks hooks;
    hooks.batch = [&](int64_t) { return to_batch(loader_->next(), device_); };
    hooks.evaluate = [&](int64_t) { return evaluate(); };
    hooks.checkpoint = [&](const LoopState& state) { save(state); };
    hooks.metrics = metrics_.get();
    result_.checkpoint = from_;
    try {
      result_.loop = train_loop(*result_.model, *optimizer_, run_.optimizer, options, hooks, state_.loop);
    } catch (const Diverged& diverged) {
      result_.loop = diverged.result;
      result_.failure = std::string(diverged.what()) + "; no model of it is left, " + kept();
      return std::move(result_);
    }
    // The model is saved even if the checkpoint, which is three times as large, did not fit on the disk.
    data_.tokenizer->save(out_);
    save_model(*result_.model, out_, data_.tokenizer->hash());
    if (!result_.loop.last_save_failure.empty()) {
      result_.failure = std::string(result_.loop.interrupted ? "stopped by a signal: " : "") + "the checkpoint of the last step, " +
                        std::to_string(result_.loop.state.step) + ", could not be saved (" + result_.loop.last_save_failure +
                        "); the model of that step is in " + out_ + ", " + kept() +
                        (result_.checkpoint.empty() ? "; --overwrite trains it anew" : "");
    }
    return std::move(result_);
  }

  std::string kept() const {
    if (result_.checkpoint.empty()) return "no checkpoint was saved before";
    const std::string best = in_out("checkpoints/best");
    return "the last checkpoint, " + result_.checkpoint + ", is kept" + (path_exists(best) ? ", and the best, " + best : "");
  }

  TextRun run_;
  std::string out_, from_;  // from_: folder of the checkpoint that the run resumes from; empty: none
  torch::Device device_;
  Config model_keys_;
  FolderLock lock_;
  Checkpoints checkpoints_;
  TextData data_;
  RunState state_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Metrics> metrics_;
  TextRunResult result_;
};

}  // namespace

TextRunResult run_text_training(const TextRun& run, const std::string& out, bool resume, bool overwrite) {
  check_run(run);
  return TextTraining(run, out).run(resume, overwrite);
}

}  // namespace based
