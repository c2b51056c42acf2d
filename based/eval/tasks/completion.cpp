#include "based/eval/tasks/completion.h"

#include <utility>

#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

class CompletionTask : public EvalTask {
 public:
  explicit CompletionTask(std::vector<CompletionItem> items) : items_(std::move(items)) {}

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }

  EvalDocument document(int64_t index) const override {
    const CompletionItem& item = items_[static_cast<size_t>(index)];
    EvalDocument document;
    document.place = item.place;
    document.source = item.source;
    document.contexts = {item.context};
    document.requests.push_back({.continuation = item.continuation});
    document.gold = item.continuation;
    return document;
  }

  Json measure(const EvalDocument&, std::span<const EvalAnswer> answers) const override {
    return {{"perplexity", answers[0].log_likelihood}, {"acc", answers[0].greedy ? 1 : 0}};
  }

  EvalFigures aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const override {
    std::vector<double> log_likelihoods;
    for (const Json& document : measured) log_likelihoods.push_back(document.at("perplexity").get<double>());
    EvalFigures figures = mean_figures(measured);
    figures.metrics["perplexity"] = {perplexity_of(log_likelihoods), bootstrap_standard_error(log_likelihoods, perplexity_of)};
    return figures;
  }

 private:
  std::vector<CompletionItem> items_;
};

}  // namespace

std::unique_ptr<EvalTask> make_completion_task(std::vector<CompletionItem> items) {
  return std::make_unique<CompletionTask>(std::move(items));
}

}  // namespace based
