#include "based/experiments/questions.h"

#include <cfloat>

namespace based {
namespace {

void require(bool right, const std::string& what) {
  if (!right) throw UsageError(what);
}

}  // namespace

std::string point_key(const std::string& series, const std::string& label) { return series + '\n' + label; }

double score_of(const StoredRun& run, bool last_segment) {
  if (!last_segment) return figure_of(run, "accuracy");
  const std::vector<double> segments = figures_of(run, "segments");
  return segments.empty() ? NAN : segments.back();
}

int64_t epoch_steps(const std::vector<QuestionSegment>& train, int64_t batch) {
  int64_t steps = 0;
  for (const QuestionSegment& segment : train) steps += (segment.examples + batch - 1) / batch;
  return steps;
}

int64_t longest_of(const std::vector<QuestionSegment>& segments) {
  int64_t longest = 0;
  for (const QuestionSegment& segment : segments) longest = std::max(longest, segment.length);
  return longest;
}

QuestionFigures figures_of(const RecallOutcome& outcome, const RecallData& data) {
  return {outcome.accuracy,    outcome.segments,   outcome.by_epoch, outcome.loss,      outcome.epochs,
          outcome.state_bytes, outcome.parameters, data.hash(),      data.test_hashes()};
}

void require_count(const std::string& where, const std::string& name, size_t count, size_t wanted) {
  if (count == wanted) return;
  throw Error(where + name + " has " + std::to_string(count) + " entries, which must be " + std::to_string(wanted));
}

namespace {

void require_hash(const std::string& where, const std::string& name, const std::string& hash, size_t digits) {
  if (hash.size() != digits || hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw Error(where + name + " is " + in_quotes(hash) + ", which is no hash of " + std::to_string(digits) + " digits");
}

}  // namespace

void check_figures(const QuestionFigures& figures, const std::vector<QuestionSegment>& test, int64_t epochs, int64_t parameters,
                   const std::string& where) {
  constexpr double kRounding = 1e-9;
  require_figure(where, "accuracy", figures.accuracy, 0, 1);
  require_figure(where, "loss", figures.loss, 0, FLT_MAX);
  require_figure(where, "epochs", static_cast<double>(figures.epochs), 1, static_cast<double>(epochs));
  require_figure(where, "state_bytes", static_cast<double>(figures.state_bytes), 1, 0x1p53);
  if (figures.parameters != parameters)
    throw Error(where + "parameters is " + std::to_string(figures.parameters) + ", but the model has " + std::to_string(parameters));
  require_count(where, "by_epoch", figures.by_epoch.size(), static_cast<size_t>(figures.epochs));
  for (const std::vector<double>& row : figures.by_epoch) {
    require_count(where, "a row of by_epoch", row.size(), test.size());
    for (const double value : row) require_figure(where, "a figure of by_epoch", value, 0, 1);
  }
  if (figures.segments != figures.by_epoch.back()) throw Error(where + "segments is not the last row of by_epoch");
  double sum = 0, examples = 0;
  for (size_t i = 0; i < test.size(); ++i) {
    sum += figures.segments[i] * static_cast<double>(test[i].examples);
    examples += static_cast<double>(test[i].examples);
  }
  if (std::abs(figures.accuracy - sum / examples) > kRounding) throw Error(where + "accuracy is not the mean of segments");
  require_hash(where, "data_hash", figures.data_hash, 32);
  for (const std::string& hash : figures.test_hashes) require_hash(where, QuestionFigures::kTestHashes, hash, 16);
}

void check_training(const TrainingAxes& training, const std::vector<QuestionSegment>& train, const std::vector<QuestionSegment>& test) {
  require(!train.empty() && !test.empty(), "task.train and task.test each need at least one segment");
  require(training.run.epochs >= 1 && training.run.batch >= 1, "training.epochs and training.batch must be at least 1");
  require(training.run.batch <= INT32_MAX, "training.batch must be below 2^31");
  require(!training.learning_rates.empty(), "training.learning_rates must not be empty");
  require(!training.seeds.empty(), "training.seeds must not be empty");
  uses_tf32(training.run);  // throws for an unknown precision
  require(!std::isnan(training.run.stop_above), "training.stop_above must be a number");
  for (const int64_t seed : training.seeds) require(seed >= 0, "training.seeds must not be negative");
  for (const bool in_test : {false, true})
    for (const QuestionSegment& segment : in_test ? test : train)
      require(segment.examples >= 1, std::string("every segment of task.") + (in_test ? "test" : "train") + " needs examples");
  require(training.run.epochs <= INT32_MAX / epoch_steps(train, training.run.batch),
          "training.epochs times the batches of an epoch must be below 2^31 steps");
}

void check_series(const std::vector<QuestionSeries>& series) {
  require(!series.empty(), "an experiment needs at least one [[series]]");
  std::set<std::string> names;
  for (const QuestionSeries& one : series) {
    require(!one.name.empty(), "every [[series]] needs a name");
    require(names.insert(one.name).second, "two [[series]] have the name " + in_quotes(one.name));
    require(one.optimizer.find("learning_rate") == nullptr,
            "series " + in_quotes(one.name) + ": optimizer.learning_rate: the rates are learning_rates");
  }
}

}  // namespace based
