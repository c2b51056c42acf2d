#include <cmath>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/output_folder.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"
#include "based/models/device.h"
#include "based/models/tensor_view.h"
#include "based/models/vocabulary_size.h"
#include "based/models/weights.h"
#include "based/parallel/agree.h"
#include "based/runtime/card.h"
#include "based/train/checkpoints.h"
#include "based/train/evaluation.h"
#include "based/train/run_saver.h"
#include "based/train/text_run.h"
#include "based/train/text_run_checks.h"

namespace based {
namespace {

namespace fs = std::filesystem;

std::string hex_hash(const TextData& data) { return hex(data.train->hash()) + hex(data.valid->hash()); }

std::string hash_of_weights(const LanguageModel& model) {
  Hasher128 hasher;
  for (const auto& [name, tensor] : named_weights(model)) {
    const Tensor host = tensor.cpu().contiguous();
    hasher.update(view_of(name, host).bytes);
  }
  return hasher.digest().hex();
}

class TextTraining {
 public:
  TextTraining(const TextRun& run, const std::string& out, const TextRunOptions& options)
      : run_(run),
        out_(out),
        options_(options),
        ranks_(options.ranks ? options.ranks : make_single_rank()),
        leader_(ranks_->rank() == 0),
        device_(parse_device(options.device.empty() ? run.train.device : options.device, "train.device")),
        checkpoints_((fs::path(out) / "checkpoints").string(), run.checkpoint.keep) {
    check_model_table(run);
    if (leader_) lock_ = std::make_unique<FolderLock>(out);
  }

  TextRunResult run() {
    find_checkpoint();
    if (leader_ && from_.empty()) require_free(out_, {.own = {model_holding()}}, options_.overwrite);
    Config model_keys = checked_model_keys(run_, from_.empty() ? run_.train.start : from_);
    data_ = load_text_data(run_.data, run_.train.length, from_, ranks_->world());
    const bool starts = from_.empty() && !run_.train.start.empty();
    const ModelConfig start = starts ? checked_start(run_, *data_.tokenizer) : ModelConfig{};
    set_vocabulary_size(model_keys, data_.tokenizer->vocab_size(), "the tokenizer (data.tokenizer = " + run_.data.tokenizer + ")");
    const ModelConfig config = read_model_config(model_keys);
    if (starts) require_model_of(config, start, "train.start", run_.train.start);
    run_.model = write_config(config);
    if (!from_.empty()) load_state();
    if (leader_ && from_.empty() && !holds_this_tokenizer()) require_free(out_, {.own = {tokenizer_holding()}}, options_.overwrite);
    loader_ =
        std::make_unique<Loader>(data_.train, loader_config(run_.train.batch / run_.train.accumulate), ranks_->rank(), ranks_->world());
    loader_->skip(skipped_windows(state_));
    loader_->seek(state_.data);
    prepare_model(config);
    agree_on_start();
    if (leader_) prepare_folder();
    saver_ = std::make_unique<RunSaver>(
        SavedRun{result_.model, optimizer_.get(), data_.tokenizer, ranks_, metrics_.get(), &checkpoints_, is_sharded()},
        options_.before_write);
    saver_->set_newest(from_);
    if (options_.resume_from >= 0) save_restart();
    return train();
  }

 private:
  int64_t bucket_bytes() const {
    return run_.train.bucket_mb > 0 ? run_.train.bucket_mb << 20 : default_bucket_bytes(device_, options_.one_host);
  }
  bool is_sharded() const { return run_.train.shard && ranks_->world() > 1; }

  // Rank 0 chooses the checkpoint, because it renames damaged ones.
  void find_checkpoint() {
    const int64_t chosen = leader_ ? choose_checkpoint() : -1;
    result_.resumed_from = std::stoll(ranks_->gather_text(std::to_string(chosen))[0]);
    if (result_.resumed_from < 0) return;
    from_ = checkpoints_.path(result_.resumed_from);
    if (!is_folder(from_))
      throw Error(from_ + ": rank " + std::to_string(ranks_->rank()) + " does not find the checkpoint; all ranks need the folder of --out");
    log_info("resuming from step " + std::to_string(result_.resumed_from) + ", " + from_);
  }

  // The checkpoint's step; −1: none.
  int64_t choose_checkpoint() {
    checkpoints_.restore_replaced();
    if (options_.resume_from >= 0) {
      checkpoints_.require_whole(options_.resume_from);
      return options_.resume_from;
    }
    const bool there = !checkpoints_.steps().empty();
    if (there && !options_.resume) {
      throw UsageError(out_ + ": holds the checkpoints of a run; --resume continues it, another --out starts a new one");
    }
    if (options_.resume && !there) log_info("--resume: no checkpoint in " + out_ + " yet; the run starts from step 0");
    return there ? *checkpoints_.newest_whole() : -1;
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

  void load_state() {
    state_ = load_resumed_state({run_, out_, from_, hex_hash(data_), device_, ranks_->world()});
    if (state_.loop.step != result_.resumed_from) {
      throw Error(path_in(from_, "trainer.json") + ": is the state of step " + std::to_string(state_.loop.step) +
                  ", not of the folder's step " + std::to_string(result_.resumed_from) + "; resume from another checkpoint");
    }
    if (options_.resume_from < 0) return;
    add_restart(state_, options_.skip, run_.train.steps * run_.train.batch);
    if (leader_) warn_of_dropped_windows();
  }

  // An earlier --skip-windows is part of the checkpoints after it alone.
  void warn_of_dropped_windows() const {
    const int64_t newest = checkpoints_.steps().back();
    std::string flags;
    try {
      flags = dropped_windows(load_run_state(checkpoints_.path(newest)), state_);
    } catch (const Error&) {  // it is damaged, and set aside
    }
    if (!flags.empty())
      log_warning("--resume-from " + std::to_string(options_.resume_from) + ": the run left out windows at a later step (" + flags +
                  "), and the checkpoint of this step knows nothing of them: they are trained on, unless these flags are given again");
  }

  LoaderConfig loader_config(int64_t rows) const {
    LoaderConfig config;
    config.length = run_.train.length;
    config.batch = rows;
    config.seed = run_.train.seed;
    config.documents = run_.data.documents;
    config.rows = run_.data.rows;
    config.reverse_complement = run_.data.reverse_complement;
    return config;
  }

  void prepare_model(const ModelConfig& config) {
    const torch::Dtype type = run_.train.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
    if (from_.empty() && !run_.train.start.empty()) {
      result_.model = load_model(run_.train.start, type, device_).model;
      log_info("the weights of step 0 are those of " + run_.train.start);
    } else if (from_.empty()) {
      result_.model = make_model(config, run_.train.seed);
      result_.model->to(device_, type);
    } else {
      require_full_weights(read_model_files(from_), "training");
      result_.model = load_model(from_, {}, device_).model;
    }
    result_.model->set_checkpoint_activations(run_.train.checkpoint_activations);
    optimizer_ = std::make_unique<AdamW>(*result_.model, run_.optimizer, ranks_, run_.train.shard, bucket_bytes());
    if (!from_.empty()) load_optimizer(from_, *optimizer_);
    result_.parameters = result_.model->parameter_count();
    result_.train_tokens = data_.train->tokens();
    result_.valid_tokens = data_.valid->tokens();
    log_info("training " + std::to_string(result_.parameters) + " parameters on " + std::to_string(result_.train_tokens) + " tokens of " +
             training_paths(run_.data) + ", " + std::to_string(result_.valid_tokens) + " held out" +
             (ranks_->world() > 1 ? "; rank " + std::to_string(ranks_->rank()) + " of " + std::to_string(ranks_->world()) : ""));
  }

  void agree_on_start() const {
    if (ranks_->world() == 1) return;
    agree_on_keys(*ranks_, run_);
    agree(*ranks_, "the data", hex_hash(data_));
    agree(*ranks_, "the position in the data", std::to_string(state_.data.window) + ", order " + loader_->order_hash());
    agree(*ranks_, "the weights", hash_of_weights(*result_.model));
  }

  void prepare_folder() {
    if (from_.empty()) remove_model();
    checkpoints_.sweep();
    remove_stale_temporaries(out_);
    write_file_atomic(in_out("run.json"), write_config(run_).to_json() + "\n");
    metrics_ = std::make_unique<Metrics>(out_, from_.empty() ? std::nullopt : std::optional(state_.metrics));
    sync_folder(out_);
  }

  // Saves the checkpoint again, with the windows to skip, so that every later resume skips them. Only then are later checkpoints renamed:
  // an interruption before leaves the run as it was.
  void save_restart() {
    if (leader_) {
      Json ranges = Json::array();
      for (const WindowRange& range : options_.skip) ranges.push_back({range.first, range.last});
      metrics_->write({{"step", state_.loop.step}, {"restarted", true}, {"skip_windows", ranges}});
    }
    save(state_.loop);
    saver_->finish();
    if (const std::optional<FailedSave> failed = saver_->take_failure())
      throw Error("--resume-from: the checkpoint of step " + std::to_string(failed->step) +
                  " could not be saved with the windows to skip: " + failed->reason);
    if (!leader_) return;
    for (const std::string& path : checkpoints_.set_aside_after(state_.loop.step, best_step(state_.loop)))
      log_info("--resume-from: a later checkpoint is kept as " + path);
  }

  int64_t best_step(const LoopState& loop) const { return run_.checkpoint.best ? loop.best_step : -1; }

  void save(const LoopState& loop) {
    RunState state;
    state.loop = loop;
    state.data = loader_->position();
    state.data_hash = hex_hash(data_);
    state.threads = torch::get_num_threads();
    state.devices = ranks_->world();
    state.restarts = state_.restarts;
    state.run = write_config(run_);
    saver_->begin(state, best_step(loop));
  }

  std::optional<FailedSave> failed_save(bool wait) {
    if (wait) saver_->finish();
    return saver_->take_failure();
  }

  // This rank's part of a micro-batch. The rows of a step are those of train.batch windows in the order of delivery, first divided among
  // the micro-batches and then among the ranks.
  Batch next_batch(int64_t index) {
    const int64_t part = index % run_.train.accumulate;
    const LoaderPosition position = loader_->position();
    if (part == 0) step_labels_ = loader_->step_labels(position, run_.train.accumulate);
    Batch batch = to_batch(loader_->next(), device_);
    batch.windows = part == 0 ? loader_->step_windows(position, run_.train.accumulate) : std::vector<int64_t>();
    batch.step_labels = step_labels_;
    batch.first_token = (part * ranks_->world() + ranks_->rank()) * batch.ids.numel();
    return batch;
  }

  // Every evaluation uses the same held-out windows, each at most once.
  HeldOutWindows held_out_windows() const {
    LoaderConfig order = loader_config(1);
    order.reverse_complement = 0;
    const int64_t windows = Loader(data_.valid, order).windows();
    order.batch = std::min(run_.train.batch, windows);
    const int64_t used = order.batch * std::min(run_.train.evaluate_batches, windows / order.batch);
    HeldOutWindows held_out(data_.valid, order, used);
    if (!run_.train.slices.empty()) held_out.add_slices(*data_.train, run_.train.slices);
    return held_out;
  }

  std::optional<Mfu> find_mfu() const {
    const std::string card = runtime::card_name(device_);
    if (card.empty()) return std::nullopt;
    const std::optional<Mfu> mfu = model_flops_utilization(*result_.model, run_.train.length, card);
    if (mfu)
      log_info("MFU is the share of " + mfu->peak.name + ", for " + format_number(mfu->flops_per_token / 1e9, 3) + " GFLOP a token");
    else
      log_info("no MFU: the peak rate of " + card + " or the operations of a mixer are not known");
    return mfu;
  }

  LoopOptions loop_options() const {
    LoopOptions options;
    options.steps = run_.train.steps;
    options.accumulate = run_.train.accumulate;
    options.evaluate_every = run_.train.evaluate_every;
    options.checkpoint_every = run_.checkpoint.every;
    options.checkpoint_best = run_.checkpoint.best;
    options.log_every = run_.train.log_every;
    options.max_bad_steps = run_.train.max_bad_steps;
    options.step = {.recordings = recordings_of_graph(run_.train.graph, device_, leader_), .seed = run_.train.seed, .ranks = ranks_};
    options.mfu = find_mfu();
    if (!from_.empty()) options.weights_file = (fs::path(from_) / "model.safetensors").string();
    return options;
  }

  LoopHooks loop_hooks() {
    LoopHooks hooks;
    hooks.batch = [this](int64_t index) { return next_batch(index); };
    hooks.order_hash = [this] { return loader_->order_hash(); };
    hooks.evaluate = [this, held_out = held_out_windows()](int64_t) { return held_out.score(*result_.model, *ranks_); };
    hooks.checkpoint = [this](const LoopState& state) { save(state); };
    hooks.failed_save = [this](bool wait) { return failed_save(wait); };
    hooks.metrics = metrics_.get();
    if (leader_) hooks.progress = options_.progress;
    return hooks;
  }

  TextRunResult train() {
    const InterruptScope interrupts;
    const LoopOptions options = loop_options();
    try {
      result_.loop = train_loop(*result_.model, *optimizer_, run_.optimizer, options, loop_hooks(), state_.loop);
    } catch (const Diverged& diverged) {
      saver_->finish();
      note_saves();
      result_.loop = diverged.result;
      result_.failure = std::string(diverged.what()) + "; no model of it is left, " + kept();
      return std::move(result_);
    }
    note_saves();
    // The model is saved even if the checkpoint, which is three times as large, did not fit on the disk.
    if (leader_) {
      data_.tokenizer->save(out_);
      save_model(*result_.model, out_, data_.tokenizer->hash());
    }
    if (!result_.loop.last_save_failure.empty()) {
      result_.failure = std::string(result_.loop.interrupted ? "stopped by a signal: " : "") + "the checkpoint of the last step, " +
                        std::to_string(result_.loop.state.step) + ", could not be saved (" + result_.loop.last_save_failure +
                        "); the model of that step is in " + out_ + ", " + kept() +
                        (result_.checkpoint.empty() ? "; --overwrite trains it anew" : "");
    }
    return std::move(result_);
  }

  void note_saves() {
    result_.checkpoint = saver_->newest();
    result_.save_seconds = saver_->seconds();
  }

  std::string kept() const {
    if (result_.checkpoint.empty()) return "no checkpoint was saved before";
    const std::string best = in_out("checkpoints/best");
    return "the last checkpoint, " + result_.checkpoint + ", is kept" + (path_exists(best) ? ", and the best, " + best : "");
  }

  TextRun run_;
  std::string out_, from_;  // from_: folder of the checkpoint that the run resumes from; empty: none
  const TextRunOptions& options_;
  const std::shared_ptr<Collectives> ranks_;
  const bool leader_;  // rank 0, which writes the files
  torch::Device device_;
  std::unique_ptr<FolderLock> lock_;
  Checkpoints checkpoints_;
  TextData data_;
  RunState state_;
  std::unique_ptr<Loader> loader_;
  int64_t step_labels_ = 0;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Metrics> metrics_;  // null on other ranks than 0
  TextRunResult result_;
  std::unique_ptr<RunSaver> saver_;  // last, so that a running save ends before the objects that it uses
};

}  // namespace

TextRunResult run_text_training(const TextRun& run, const std::string& out, const TextRunOptions& options) {
  check_run(run, options.ranks ? options.ranks->world() : 1);
  if (!options.skip.empty() && options.resume_from < 0) throw UsageError("--skip-windows needs --resume-from, the step to return to");
  return TextTraining(run, out, options).run();
}

}  // namespace based
