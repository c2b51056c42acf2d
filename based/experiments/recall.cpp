// The kind "recall": recall against state size (figures 1 to 3 of the paper).
#include "based/experiments/questions.h"
#include "based/experiments/recall_figures.h"

namespace based {
namespace {

struct RecallKind {
  using Task = RecallTask;
  static constexpr const char *kName = "recall", *kTitle = "Recall against the memory it takes";
  static constexpr int64_t kVersion = mqar_version;
  static constexpr bool kAgainstParameters = true;

  static void check(const Task& task) { check_recall_task(task); }
  static int64_t vocab_size(const Task& task) { return task.vocab_size; }
  static std::vector<QuestionSegment> segments(const Task& task, bool test) {
    std::vector<QuestionSegment> all;
    for (const RecallSegment& segment : test ? task.test : task.train) all.push_back({segment.length, segment.examples});
    return all;
  }
  static MqarSegments make(const Task& task) { return make_recall_segments(task); }
  using Measured = NoFigures;
  static Measured measure(LanguageModel&, const RecallData&, const Task&) { return {}; }
  static void check_measured(const Task&, const Measured&, const std::string&) {}
  static std::vector<Figure> figures(const RecallSummary& summary, const std::vector<PointResult>& points) {
    return recall_figures(summary, points);
  }
  static std::string table(const RecallSummary& summary, const std::vector<PointResult>& points) { return recall_table(summary, points); }
};

}  // namespace

BASED_QUESTIONS_KIND(recall, RecallKind, "Multi-query associative recall against bytes of state")

}  // namespace based
