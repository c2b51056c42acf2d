#include "based/experiments/questions.h"

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

void check_training(const TrainingAxes& training, const std::vector<QuestionSegment>& train, const std::vector<QuestionSegment>& test) {
  require(!train.empty() && !test.empty(), "task.train and task.test each need at least one segment");
  require(training.run.epochs >= 1 && training.run.batch >= 1, "training.epochs and training.batch must be at least 1");
  require(training.run.batch <= INT32_MAX, "training.batch must be below 2^31");
  require(!training.learning_rates.empty(), "training.learning_rates must not be empty");
  require(!training.seeds.empty(), "training.seeds must not be empty");
  uses_tf32(training.run);  // refuses what is neither
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
