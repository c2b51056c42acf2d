#include "based/train/classification.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/output_folder.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"
#include "based/data/dna.h"
#include "based/generate/text_model.h"
#include "based/models/device.h"
#include "based/models/vocabulary_size.h"
#include "based/runtime/card.h"
#include "based/train/classification_data.h"
#include "based/train/run_saver.h"

namespace based {
namespace {

constexpr int64_t kMeasuredTokens = 16384;  // in a group of measure_classes
constexpr std::array kSelectable{"mcc", "f1", "accuracy", "loss"};

void check_classification(const ClassificationRun& run) {
  const auto require = [](bool right, const std::string& what) {
    if (!right) throw UsageError(what);
  };
  const ClassificationConfig& config = run.classification;
  check_optimizer_options(run.optimizer);
  check_pooling(config.pooling);
  require(run.optimizer.schedule == "step", "optimizer.schedule must be step for a classification");
  require(!config.train.empty(), "classification.train names no set");
  require(config.dev_fraction > 0 && config.dev_fraction < 1, "classification.dev_fraction must be above 0 and below 1");
  require(config.reverse_complement >= 0 && config.reverse_complement <= 1,
          "classification.reverse_complement must be a chance from 0 to 1");
  require(std::find(kSelectable.begin(), kSelectable.end(), config.select) != kSelectable.end(),
          "classification.select must be mcc, f1, accuracy or loss, got " + in_quotes(config.select));
  require(!config.pretrained.empty() || !run.model.is_null(), "a classification needs [model] or classification.pretrained");
  require(run.train.epochs >= 1 && run.train.batch >= 1, "train.epochs and train.batch must be at least 1");
  require(run.train.precision == "fp32" || run.train.precision == "bf16", "train.precision must be fp32 or bf16");
  require(run.train.evaluate_every >= 0 && run.train.log_every >= 1 && run.train.max_bad_steps >= 1,
          "train.evaluate_every must not be negative; train.log_every and train.max_bad_steps must be at least 1");
  require(run.checkpoint.every >= 0 && run.checkpoint.keep >= 1, "checkpoint.every must not be negative, and checkpoint.keep at least 1");
}

// Whether a resumed run may have another value of the key: it changes only rounding, or the data's hash is compared instead.
bool may_differ(const std::string& key) {
  static constexpr std::array free{
      "train.device",        "train.max_bad_steps",      "train.graph", "classification.train", "classification.dev",
      "classification.test", "classification.pretrained"};
  return std::find(free.begin(), free.end(), key) != free.end() || key.starts_with("checkpoint.");
}

// Throws UsageError naming the first key in which the resumed run differs from the saved one.
void require_same_keys(const Config& before, const Config& now, const std::string& path, const std::string& out) {
  if (now.is_table() && before.is_table()) {
    for (const auto& [key, value] : std::get<Config::Table>(now.value())) {
      const Config* saved = before.find(key);
      require_same_keys(saved ? *saved : Config(), value, path.empty() ? key : path + "." + key, out);
    }
    return;
  }
  if (may_differ(path) || before.to_json(-1) == now.to_json(-1)) return;
  throw UsageError("--resume: " + path + " is " + now.to_json(-1) + ", the run in " + out + " has " + before.to_json(-1) +
                   ": it would not be the same run; put the key back, or train into another folder");
}

// A recorded step replays one shape.
void require_one_length(const LabelledTokens& train, const std::string& path) {
  size_t least = train.sequence(0).size(), most = least;
  for (int64_t i = 1; i < train.size(); ++i) {
    const size_t length = train.sequence(i).size();
    least = std::min(least, length), most = std::max(most, length);
  }
  if (least == most) return;
  throw UsageError("train.graph needs training sequences of one length, and those of " + path + " have " + std::to_string(least) + " to " +
                   std::to_string(most) + " tokens: leave train.graph off");
}

Figures figures_of(const ClassFigures& of_set) {
  return {{"loss", of_set.loss},
          {"accuracy", of_set.confusion.accuracy()},
          {"mcc", of_set.confusion.mcc()},
          {"f1", of_set.confusion.macro_f1()}};
}

class Classification {
 public:
  Classification(const ClassificationRun& run, const std::string& out, const ClassificationOptions& options)
      : run_(run),
        out_(out),
        options_(options),
        device_(parse_device(run.train.device, "train.device")),
        checkpoints_(path_in(out, "checkpoints"), run.checkpoint.keep) {}

  ClassificationResult run() {
    load();
    lock_ = std::make_unique<FolderLock>(out_);
    find_checkpoint();
    prepare_model();
    prepare_folder();
    batches_ = std::make_unique<ClassBatches>(
        *data_.train, ClassBatches::Options{run_.train.batch, run_.train.seed, run_.classification.reverse_complement}, device_);
    saver_ = std::make_unique<RunSaver>(SavedRun{classifier_, optimizer_.get(), data_.tokenizer, ranks_, metrics_.get(), &checkpoints_},
                                        [this](const std::string& folder) { write_classes(classifier_->head(), folder); });
    saver_->set_newest(from_);
    return train();
  }

 private:
  int64_t steps() const { return (data_.train->size() * run_.train.epochs + run_.train.batch - 1) / run_.train.batch; }
  int64_t epoch_steps() const { return (data_.train->size() + run_.train.batch - 1) / run_.train.batch; }

  ModelConfig model_of_keys(const Tokenizer& tokenizer, const std::string& source) const {
    Config keys = model_table(run_.model);
    set_vocabulary_size(keys, tokenizer.vocab_size(), source);
    return read_model_config(keys);
  }

  // Reads the model's config, the tokenizer and the sets.
  void load() {
    const ClassificationConfig& config = run_.classification;
    std::shared_ptr<const Tokenizer> tokenizer;
    if (config.pretrained.empty()) {
      tokenizer = make_tokenizer(config.tokenizer);
      model_ = model_of_keys(*tokenizer, "the tokenizer (classification.tokenizer = " + config.tokenizer + ")");
    } else {
      TextModel pretrained = load_text_model(config.pretrained);
      body_ = pretrained.model;
      tokenizer = std::move(pretrained.tokenizer);
      model_ = body_->config();
      if (!run_.model.is_null())
        require_model_of(model_of_keys(*tokenizer, "the tokenizer of " + config.pretrained), model_, "classification.pretrained",
                         config.pretrained);
    }
    if (config.reverse_complement > 0 && !is_dna_tokenizer(*tokenizer))
      throw UsageError("classification.reverse_complement needs the tokenizer dna");
    data_ = load_classification_data(config, std::move(tokenizer), run_.train.seed, model_.max_positions);
    if (run_.train.graph) require_one_length(*data_.train, config.train);
    result_.classes = data_.classes;
    result_.train_sequences = data_.train->size(), result_.dev_sequences = data_.dev->size();
    result_.test_sequences = data_.test ? data_.test->size() : 0;
    run_.model = write_config(model_);
  }

  void find_checkpoint() {
    checkpoints_.restore_replaced();
    const bool there = !checkpoints_.steps().empty();
    if (there && !options_.resume)
      throw UsageError(out_ + ": holds the checkpoints of a run; --resume continues it, another --out starts a new one");
    if (!there) {
      if (options_.resume) log_info("--resume: no checkpoint in " + out_ + " yet; the run starts from step 0");
      require_free(out_, {.own = {model_holding(), tokenizer_holding()}}, options_.overwrite);
      return;
    }
    result_.resumed_from = *checkpoints_.newest_whole();
    from_ = checkpoints_.path(result_.resumed_from);
    log_info("resuming from step " + std::to_string(result_.resumed_from) + ", " + from_);
    state_ = load_run_state(from_);
    require_same_keys(state_.run, write_config(run_), "", out_);
    if (state_.data_hash != data_.hash())
      throw UsageError("--resume: the sequences of " + run_.classification.train +
                       ", or of dev or test, are not those that the run began "
                       "with; put them back, or train into another folder");
  }

  void prepare_model() {
    const ClassifierHead head{data_.classes, run_.classification.pooling};
    if (from_.empty()) {
      classifier_ = make_classifier(model_, head, run_.train.seed);
      if (body_) copy_body(*body_, *classifier_);
      classifier_->to(device_, run_.train.precision == "bf16" ? torch::kBFloat16 : torch::kFloat);
    } else {
      classifier_ = load_classifier(from_, device_);
    }
    body_.reset();
    optimizer_ = std::make_unique<AdamW>(*classifier_, run_.optimizer, ranks_);
    if (!from_.empty()) load_optimizer(from_, *optimizer_);
    result_.parameters = classifier_->parameter_count();
    result_.device = runtime::card_or_cpu(device_);
    log_info("training a classifier of " + std::to_string(data_.classes.size()) + " classes, " + std::to_string(result_.parameters) +
             " parameters, on " + std::to_string(data_.train->size()) + " sequences of " + run_.classification.train + ", " +
             std::to_string(data_.dev->size()) + " for the choice of the model");
  }

  void prepare_folder() {
    if (from_.empty())
      for (const Holding& holding : {model_holding(), tokenizer_holding()})
        for (const std::string& name : holding.names) remove_file(path_in(out_, name));
    remove_file(path_in(out_, "result.json"));
    checkpoints_.sweep();
    remove_stale_temporaries(out_);
    write_file_atomic(path_in(out_, "run.json"), write_config(run_).to_json() + "\n");
    metrics_ = std::make_unique<Metrics>(out_, from_.empty() ? std::nullopt : std::optional(state_.metrics));
    sync_folder(out_);
  }

  LoopOptions loop_options() const {
    LoopOptions options;
    options.steps = steps();
    options.evaluate_every = run_.train.evaluate_every > 0 ? run_.train.evaluate_every : epoch_steps();
    options.checkpoint_every = run_.checkpoint.every;
    options.checkpoint_best = true;
    options.best_figure = run_.classification.select;
    options.best_is_highest = run_.classification.select != "loss";
    options.log_every = run_.train.log_every;
    options.max_bad_steps = run_.train.max_bad_steps;
    options.spikes = false;
    options.step = {.recordings = recordings_of_graph(run_.train.graph, device_), .seed = run_.train.seed, .ranks = ranks_};
    if (!from_.empty()) options.weights_file = path_in(from_, "model.safetensors");
    return options;
  }

  void save(const LoopState& loop) {
    RunState state;
    state.loop = loop;
    state.data.window = loop.step * run_.train.batch;
    state.data_hash = data_.hash();
    state.threads = torch::get_num_threads();
    state.devices = 1;
    state.run = write_config(run_);
    saver_->begin(state, loop.best_step);
  }

  std::optional<FailedSave> failed_save(bool wait) {
    if (wait) saver_->finish();
    return saver_->take_failure();
  }

  ClassificationResult train() {
    const InterruptScope interrupts;
    LoopHooks hooks;
    hooks.batch = [this](int64_t step) { return batches_->at(step); };
    hooks.evaluate = [this](int64_t) { return figures_of(measure_classes(*classifier_, *data_.dev)); };
    hooks.checkpoint = [this](const LoopState& state) { save(state); };
    hooks.failed_save = [this](bool wait) { return failed_save(wait); };
    hooks.metrics = metrics_.get();
    hooks.progress = options_.progress;
    try {
      result_.loop = train_loop(*classifier_, *optimizer_, run_.optimizer, loop_options(), hooks, state_.loop);
    } catch (const Diverged& diverged) {
      saver_->finish();
      result_.loop = diverged.result;
      result_.failure = std::string(diverged.what()) + "; no model of it is left";
    }
    result_.checkpoint = saver_->newest();
    if (result_.failure.empty() && !result_.loop.last_save_failure.empty())
      result_.failure = "the checkpoint of the last step could not be saved: " + result_.loop.last_save_failure;
    if (result_.failure.empty() && !result_.loop.interrupted) finish();
    return std::move(result_);
  }

  // Measures the chosen model and writes it.
  void finish() {
    const int64_t best = result_.loop.state.best_step;
    if (best >= 0 && best != result_.loop.state.step) {
      if (!is_folder(checkpoints_.path(best)))
        throw Error(checkpoints_.path(best) + ": the checkpoint of the best evaluation is not there; its save may have failed before");
      optimizer_.reset();
      classifier_ = load_classifier(checkpoints_.path(best), device_);
    }
    result_.dev = measure_classes(*classifier_, *data_.dev);
    if (data_.test) result_.test = measure_classes(*classifier_, *data_.test);
    save_classifier(*classifier_, out_, *data_.tokenizer);
    write_file_atomic(path_in(out_, "result.json"), dump_json(result_.to_json(), 2) + "\n");
  }

  ClassificationRun run_;
  std::string out_, from_;  // from_: folder of the checkpoint that the run resumes from; empty: none
  const ClassificationOptions& options_;
  torch::Device device_;
  const std::shared_ptr<Collectives> ranks_ = make_single_rank();
  std::unique_ptr<FolderLock> lock_;
  Checkpoints checkpoints_;
  ModelConfig model_;
  std::shared_ptr<LanguageModel> body_;  // the pretrained model; null: none
  ClassificationData data_;
  RunState state_;
  std::shared_ptr<Classifier> classifier_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<ClassBatches> batches_;
  ClassificationResult result_;
  std::unique_ptr<RunSaver> saver_;  // last, so that a running save ends before the objects that it uses
};

}  // namespace

bool is_classification(const Config& config) { return config.find("classification") != nullptr; }

Json ClassFigures::to_json() const {
  Json rows = Json::array();
  for (int64_t label = 0; label < confusion.classes(); ++label) {
    Json row = Json::array();
    for (int64_t prediction = 0; prediction < confusion.classes(); ++prediction) row.push_back(confusion.count(label, prediction));
    rows.push_back(row);
  }
  return {{"cases", confusion.cases()},
          {"accuracy", confusion.accuracy()},
          {"mcc", confusion.mcc()},
          {"f1", confusion.macro_f1()},
          {"loss", loss},
          {"confusion", rows}};
}

Json ClassificationResult::to_json() const {
  return {{"classes", classes},
          {"device", device},
          {"parameters", parameters},
          {"train_sequences", train_sequences},
          {"steps", loop.state.step},
          {"best_step", loop.state.best_step},
          {"dev", dev ? dev->to_json() : Json(nullptr)},
          {"test", test ? test->to_json() : Json(nullptr)}};
}

ClassFigures measure_classes(Classifier& classifier, const LabelledTokens& data) {
  const torch::NoGradGuard no_grad;
  ClassFigures figures{ConfusionMatrix(classifier.classes())};
  double nats = 0;
  for (int64_t next = 0; next < data.size();) {
    std::vector<int64_t> group;
    for (int64_t tokens = 0; next < data.size() && (group.empty() || tokens < kMeasuredTokens); ++next) {
      group.push_back(next);
      tokens += static_cast<int64_t>(data.sequence(next).size());
    }
    const Batch batch = class_batch(data, group, {}, classifier.device());
    const Tensor logits = classifier.class_logits(batch.ids, batch.rows);
    const Tensor losses = torch::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::None).to(torch::kDouble).cpu();
    const Tensor chosen = logits.argmax(1).cpu();
    for (size_t i = 0; i < group.size(); ++i) {
      figures.confusion.add(data.label(group[i]), chosen.const_data_ptr<int64_t>()[i]);
      nats += losses.const_data_ptr<double>()[i];
    }
  }
  figures.loss = nats / static_cast<double>(data.size());
  return figures;
}

ClassificationResult run_classification(const ClassificationRun& run, const std::string& out, const ClassificationOptions& options) {
  check_classification(run);
  return Classification(run, out, options).run();
}

}  // namespace based
