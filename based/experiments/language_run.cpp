#include "based/experiments/language_run.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/text.h"
#include "based/eval/perplexity.h"
#include "based/experiments/run_curves.h"
#include "based/models/language_model.h"
#include "based/runtime/card.h"

namespace based {
namespace {

constexpr double kCurveUnits = 1e5;  // curves are rounded to multiples of 1/kCurveUnits nats
constexpr double kSumRounding = 1e-9;

// A process that worked on a run. The list of them is stored in the run's folder; a piece is added when its process starts and filled in
// when it ends, so a piece that was killed has only its card and commit.
struct LanguagePiece {
  std::string card, commit;
  double seconds = 0, tokens_per_second = 0;
  int64_t peak_memory = 0;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("card", card, "");
    field("commit", commit, "");
    field("seconds", seconds, "");
    field("tokens_per_second", tokens_per_second, "");
    field("peak_memory", peak_memory, "");
  }
};

struct LanguagePieces {
  std::vector<LanguagePiece> pieces;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("pieces", pieces, "");
  }

  LanguageCost cost() const {
    LanguageCost sum;
    const auto add = [](std::vector<std::string>& list, const std::string& name) {
      if (!name.empty() && std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
    };
    double longest = 0;
    for (const LanguagePiece& piece : pieces) {
      add(sum.cards, piece.card);
      add(sum.commits, piece.commit);
      ++sum.pieces;
      sum.seconds += piece.seconds;
      sum.peak_memory = std::max(sum.peak_memory, piece.peak_memory);
      if (piece.seconds > longest && piece.tokens_per_second > 0) {
        longest = piece.seconds;
        sum.tokens_per_second = piece.tokens_per_second;
      }
    }
    return sum;
  }
};

class LanguageRun {
 public:
  LanguageRun(const TextRun& run, const LanguageEvaluation& evaluation, const LanguageData& data, const RunHooks& hooks)
      : run_(run), evaluation_(evaluation), data_(data), hooks_(hooks), pieces_file_(path_in(hooks.folder, "pieces.json")) {}

  std::optional<LanguageOutcome> go() {
    begin_piece();
    TextRunResult trained = train();
    end_piece(trained.loop);
    if (trained.loop.interrupted) {
      if (!trained.failure.empty()) log_warning(trained.failure);
      return {};
    }
    const bool whole = trained.failure.empty() || !trained.loop.last_save_failure.empty();  // else it diverged
    if (!whole) throw Error(trained.failure);
    if (!trained.failure.empty()) log_warning(trained.failure);
    trained.model->eval();
    if (!score(*trained.model)) return {};
    read_curves();
    outcome_.steps = trained.loop.state.step;
    outcome_.skipped = trained.loop.state.skipped;
    outcome_.parameters = trained.parameters;
    outcome_.state_bytes = state_bytes(*trained.model, run_.train.length);
    outcome_.cost = pieces_.cost();
    if (hooks_.trained) hooks_.trained(*trained.model, write_config(outcome_));
    return outcome_;
  }

 private:
  // Errors before and after the steps, such as a full disk, say nothing about the run. A failure of the training itself is a result.
  TextRunResult train() {
    TextRunOptions options;
    options.resume = options.overwrite = true;
    options.progress = [this](const LoopState& state) {
      if (hooks_.progress) hooks_.progress(state.step, run_.train.steps, state.loss, NAN);
    };
    try {
      return run_text_training(run_, hooks_.folder, options);
    } catch (const Error& error) {
      throw CannotRun(error.what());
    }
  }

  void begin_piece() {
    make_folder(hooks_.folder);
    if (path_exists(pieces_file_))
      pieces_ = read_stored([&] { return read_config<LanguagePieces>(Config::parse_json_file(pieces_file_)); });
    pieces_.pieces.push_back({runtime::card_or_cpu(data_.device()), hooks_.commit, 0, 0, 0});
    write_pieces();
  }

  void end_piece(const LoopResult& loop) {
    LanguagePiece& piece = pieces_.pieces.back();
    piece.seconds = loop.seconds;
    piece.tokens_per_second = loop.tokens_per_second;
    piece.peak_memory = loop.peak_memory;
    write_pieces();
  }

  void write_pieces() const { write_file_atomic(pieces_file_, write_config(pieces_).to_json() + "\n"); }

  // False: interrupted.
  bool score(LanguageModel& model) {
    const size_t thresholds = evaluation_.thresholds.size();
    outcome_.ar_tokens.resize(thresholds);
    outcome_.ar_nats.resize(thresholds);
    WindowOptions options;
    options.length = run_.train.length;
    options.documents = run_.data.documents;
    bool stopped = false;
    const auto proceed = [&](int64_t) { return !(stopped = interrupted()); };
    for (const LanguageData::HeldOut& set : data_.held_out()) {
      std::vector<SliceFigures> figures(thresholds);
      for (size_t i = 0; i < thresholds; ++i) figures[i].threshold = evaluation_.thresholds[i];
      const auto sink = [&](const TokenBatch& batch, std::span<const float> nats) {
        const std::vector<int64_t> counts = data_.slices().training_counts(token_pairs(batch));
        for (SliceFigures& each : figures) each.add(nats, counts, batch.targets);
      };
      measure_windows(model, set.tokens, options, proceed, sink);
      if (stopped) return false;
      outcome_.sets.push_back(set.name);
      outcome_.held_out_hashes.push_back(hex(set.tokens->hash()));
      outcome_.tokens.push_back(figures.front().all.tokens);
      outcome_.nats.push_back(figures.front().all.nats);
      for (size_t i = 0; i < thresholds; ++i) {
        outcome_.ar_tokens[i].push_back(figures[i].ar.tokens);
        outcome_.ar_nats[i].push_back(figures[i].ar.nats);
      }
    }
    outcome_.loss = std::accumulate(outcome_.nats.begin(), outcome_.nats.end(), 0.0) /
                    static_cast<double>(std::accumulate(outcome_.tokens.begin(), outcome_.tokens.end(), int64_t{0}));
    return true;
  }

  void read_curves() {
    const LoggedLosses logged = read_losses(path_in(hooks_.folder, "metrics.jsonl"), LastLine::whole);
    const auto add = [](const LossCurve& curve, std::vector<int64_t>& steps, std::vector<double>& losses) {
      for (const auto& [step, loss] : curve) {
        steps.push_back(step);
        losses.push_back(std::round(loss * kCurveUnits) / kCurveUnits);
      }
    };
    add(logged.train, outcome_.train_steps, outcome_.train_loss);
    add(logged.held_out, outcome_.evaluation_steps, outcome_.evaluation_loss);
    outcome_.order_hash = logged.order_step == run_.train.steps ? logged.order_hash : order_hash();
  }

  // The hash that the metrics have at the last step, unless its update was skipped.
  std::string order_hash() const {
    LoaderConfig config;
    config.length = run_.train.length;
    config.batch = run_.train.batch;
    config.seed = run_.train.seed;
    config.documents = run_.data.documents;
    Loader loader(data_.train(), config);
    loader.seek({.window = run_.train.steps * run_.train.batch});
    return loader.order_hash();
  }

  const TextRun& run_;
  const LanguageEvaluation& evaluation_;
  const LanguageData& data_;
  const RunHooks& hooks_;
  const std::string pieces_file_;
  LanguagePieces pieces_;
  LanguageOutcome outcome_;
};

std::string name_of_set(const std::string& path) {
  const std::string trimmed = path.substr(0, path.find_last_not_of('/') + 1);
  return trimmed.substr(trimmed.find_last_of('/') + 1);
}

template <class T>
T sum_of(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T{});
}

double mean_nats(double nats, int64_t tokens) { return tokens > 0 ? nats / static_cast<double>(tokens) : NAN; }

void require_entries(const std::string& where, const std::string& name, size_t count, size_t wanted) {
  if (count != wanted) throw Error(where + name + " has " + std::to_string(count) + " entries, which must be " + std::to_string(wanted));
}

void require_hex(const std::string& where, const std::string& name, const std::string& hash) {
  if (hash.size() != 16 || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw Error(where + name + " is " + in_quotes(hash) + ", which is no hash of 16 digits");
}

void check_curve(const std::string& where, const std::string& name, const std::vector<int64_t>& at, const std::vector<double>& losses,
                 int64_t steps) {
  require_entries(where, name + "_loss", losses.size(), at.size());
  for (size_t i = 0; i < at.size(); ++i) {
    require_figure(where, name + "_steps", static_cast<double>(at[i]), i > 0 ? static_cast<double>(at[i - 1] + 1) : 1,
                   static_cast<double>(steps));
    require_figure(where, name + "_loss", losses[i], 0, FLT_MAX);
  }
}

void check_slices(const std::string& where, const LanguageOutcome& outcome, size_t sets, size_t thresholds) {
  constexpr double kMost = 0x1p53;
  require_entries(where, "sets", outcome.sets.size(), sets);
  require_entries(where, "tokens", outcome.tokens.size(), sets);
  require_entries(where, "nats", outcome.nats.size(), sets);
  require_entries(where, "held_out_hashes", outcome.held_out_hashes.size(), sets);
  require_entries(where, "ar_tokens", outcome.ar_tokens.size(), thresholds);
  require_entries(where, "ar_nats", outcome.ar_nats.size(), thresholds);
  for (size_t set = 0; set < sets; ++set) {
    require_figure(where, "tokens", static_cast<double>(outcome.tokens[set]), 1, kMost);
    require_figure(where, "nats", outcome.nats[set], 0, FLT_MAX);
    require_hex(where, "held_out_hashes", outcome.held_out_hashes[set]);
  }
  for (size_t i = 0; i < thresholds; ++i) {
    require_entries(where, "a row of ar_tokens", outcome.ar_tokens[i].size(), sets);
    require_entries(where, "a row of ar_nats", outcome.ar_nats[i].size(), sets);
    for (size_t set = 0; set < sets; ++set) {
      require_figure(where, "ar_tokens", static_cast<double>(outcome.ar_tokens[i][set]), 0, static_cast<double>(outcome.tokens[set]));
      require_figure(where, "ar_nats", outcome.ar_nats[i][set], 0, outcome.nats[set] * (1 + kSumRounding));
    }
  }
  const double mean = sum_of(outcome.nats) / static_cast<double>(sum_of(outcome.tokens));
  if (!(std::abs(outcome.loss - mean) <= kSumRounding * (1 + mean))) throw Error(where + "loss is not the mean of nats");
}

}  // namespace

double LanguageOutcome::ar_loss(size_t threshold) const {
  return mean_nats(sum_of(ar_nats.at(threshold)), sum_of(ar_tokens.at(threshold)));
}

double LanguageOutcome::other_loss(size_t threshold) const {
  return mean_nats(sum_of(nats) - sum_of(ar_nats.at(threshold)), sum_of(tokens) - sum_of(ar_tokens.at(threshold)));
}

double LanguageOutcome::ar_share(size_t threshold) const {
  return static_cast<double>(sum_of(ar_tokens.at(threshold))) / static_cast<double>(sum_of(tokens));
}

LanguageData::LanguageData(const TextDataConfig& data, const LanguageEvaluation& evaluation, int64_t length, torch::Device device)
    : device_(device) {
  const TextData text = load_text_data(data, length);
  train_ = text.train;
  if (evaluation.held_out.empty()) held_out_.push_back({data.valid.empty() ? "held out" : name_of_set(data.valid), text.valid});
  for (const std::string& path : evaluation.held_out) {
    if (!path_exists(path)) throw Error(path + ": no such file or folder; evaluation.held_out names it");
    TextDataConfig one = data;
    one.valid = path;
    held_out_.push_back({name_of_set(path), load_text_data(one, length).valid});
  }
  WindowOptions options;
  options.length = length;
  options.documents = data.documents;
  for (const HeldOut& set : held_out_)
    for_each_window_batch(set.tokens, options, torch::kCPU, [&](const TokenBatch& batch) {
      slices_.collect(token_pairs(batch));
      return true;
    });
  for (const WeightedSet& set : train_->sets()) slices_.count(*set.data);
}

std::optional<LanguageOutcome> train_language(const TextRun& run, const LanguageEvaluation& evaluation, const LanguageData& data,
                                              const RunHooks& hooks) {
  BASED_ASSERT(!hooks.folder.empty());
  return LanguageRun(run, evaluation, data, hooks).go();
}

void check_language_outcome(const Config& outcome, size_t sets, size_t thresholds, int64_t steps, int64_t parameters) {
  const auto read = read_whole<LanguageOutcome>(outcome);
  read_whole<LanguageCost>(*outcome.find("cost"));
  const std::string& where = outcome.where();
  require_figure(where, "loss", read.loss, 0, FLT_MAX);
  check_slices(where, read, sets, thresholds);
  check_curve(where, "train", read.train_steps, read.train_loss, steps);
  check_curve(where, "evaluation", read.evaluation_steps, read.evaluation_loss, steps);
  require_figure(where, "steps", static_cast<double>(read.steps), static_cast<double>(steps), static_cast<double>(steps));
  require_figure(where, "skipped", static_cast<double>(read.skipped), 0, static_cast<double>(steps));
  require_figure(where, "state_bytes", static_cast<double>(read.state_bytes), 1, 0x1p53);
  if (read.parameters != parameters)
    throw Error(where + "parameters is " + std::to_string(read.parameters) + ", but the model has " + std::to_string(parameters));
  require_hex(where, "order_hash", read.order_hash);
  if (read.cost.cards.empty()) throw Error(where + "cost.cards is empty");
  require_figure(where, "cost.pieces", static_cast<double>(read.cost.pieces), 1, 0x1p53);
  require_figure(where, "cost.seconds", read.cost.seconds, 0, FLT_MAX);
  require_figure(where, "cost.tokens_per_second", read.cost.tokens_per_second, 0, FLT_MAX);
  require_figure(where, "cost.peak_memory", static_cast<double>(read.cost.peak_memory), 0, 0x1p53);
}

}  // namespace based
