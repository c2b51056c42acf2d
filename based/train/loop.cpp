#include "based/train/loop.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "based/core/interrupt.h"
#include "based/core/progress.h"

namespace based {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

class Metrics {
 public:
  explicit Metrics(const std::string& path) : path_(path) {
    if (path.empty()) return;
    out_.open(path, std::ios::app);
    if (!out_) throw Error(path + ": cannot be opened for writing");
  }
  void write(const Json& line) {
    if (path_.empty()) return;
    out_ << dump_json(line) << '\n' << std::flush;
    if (!out_) throw Error(path_ + ": cannot be written; is the disk full?");
  }

 private:
  std::string path_;
  std::ofstream out_;
};

// One optimizer step. Returns the loss and the gradient norm before clipping.
std::pair<double, double> optimize(LanguageModel& model, AdamW& optimizer, const Batch& batch, double rate, int64_t step) {
  optimizer.zero_grad();
  const Tensor loss = model.loss(batch.ids, batch.labels, batch.rows);
  const double value = loss.item<double>();
  if (!std::isfinite(value))
    throw Error("training: the loss of step " + std::to_string(step) + " is not finite; try a lower learning rate");
  loss.backward();
  const double norm = optimizer.clip_gradients();
  if (!std::isfinite(norm))
    throw Error("training: the gradient of step " + std::to_string(step) + " is not finite; try a lower learning rate");
  optimizer.step(rate);
  return {value, norm};
}

}  // namespace

LoopResult train_loop(LanguageModel& model, AdamW& optimizer, const OptimizerOptions& schedule, const LoopOptions& options,
                      const LoopHooks& hooks) {
  const InterruptScope interrupts;
  Metrics metrics(options.metrics_path);
  Progress progress(options.label, options.steps);
  LoopResult result;
  double training_seconds = 0;
  int64_t tokens = 0;
  const auto at_step = [&](int64_t every, int64_t done) { return every > 0 && done % every == 0; };
  const auto evaluate = [&](int64_t done) {
    if (!hooks.evaluate) return;
    model.eval();
    result.evaluation = hooks.evaluate(done);
    model.train();
    Json line{{"step", done}};
    for (const auto& [key, value] : result.evaluation.items()) line["eval_" + key] = value;
    metrics.write(line);
  };
  const double start = now();
  model.train();
  while (result.steps < options.steps && !interrupted()) {
    const double step_start = now(), rate = learning_rate(schedule, result.steps, options.steps);
    const Batch batch = hooks.batch(result.steps);
    const auto [loss, norm] = optimize(model, optimizer, batch, rate, result.steps);
    training_seconds += now() - step_start;
    tokens += batch.ids.numel();
    result.loss = loss;
    result.tokens_per_second = static_cast<double>(tokens) / training_seconds;
    ++result.steps;
    if (at_step(options.log_every, result.steps) || result.steps == options.steps)
      metrics.write({{"step", result.steps},
                     {"loss", loss},
                     {"gradient_norm", norm},
                     {"learning_rate", rate},
                     {"tokens_per_second", result.tokens_per_second}});
    if (at_step(options.evaluate_every, result.steps) && result.steps < options.steps) evaluate(result.steps);
    if (at_step(options.checkpoint_every, result.steps) && hooks.checkpoint && result.steps < options.steps) hooks.checkpoint(result.steps);
    Progress::Fields fields{{"loss", fixed(loss, 3)}, {"tokens/s", format_count(result.tokens_per_second)}};
    for (const auto& [key, value] : result.evaluation.items())
      if (value.is_number()) fields.emplace_back("eval " + key, fixed(value.get<double>(), 3));
    progress.update(result.steps, fields);
  }
  result.interrupted = result.steps < options.steps;
  evaluate(result.steps);
  progress.finish();
  if (hooks.checkpoint) hooks.checkpoint(result.steps);
  model.eval();
  result.seconds = now() - start;
  return result;
}

}  // namespace based
