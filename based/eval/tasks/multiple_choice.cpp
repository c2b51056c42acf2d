#include "based/eval/tasks/multiple_choice.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"

namespace based {

MultipleChoiceTask::MultipleChoiceTask(std::vector<ChoiceItem> items, std::vector<std::string> listed, std::string delimiter)
    : items_(std::move(items)), listed_(std::move(listed)), delimiter_(std::move(delimiter)) {}

EvalDocument MultipleChoiceTask::document(int64_t index) const {
  const ChoiceItem& item = items_[static_cast<size_t>(index)];
  FewShotExamples shots = examples(index);
  EvalDocument document;
  document.place = item.place;
  document.source = item.source;
  document.few_shot = std::move(shots.indices);
  document.contexts = {std::move(shots.text) + item.context};
  for (const std::string& choice : item.choices) document.requests.push_back({.continuation = delimiter_ + choice});
  document.gold = item.gold;
  document.fields = item.fields;
  return document;
}

Json MultipleChoiceTask::measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const {
  const ChoiceItem& item = items_[static_cast<size_t>(document.index)];
  return measure_choices(item.choices, item.gold, answers, listed_);
}

EvalFigures MultipleChoiceTask::aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const {
  return mean_figures(measured);
}

size_t first_largest(std::span<const double> values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

Json measure_choices(std::span<const std::string> choices, int64_t gold, std::span<const EvalAnswer> answers,
                     const std::vector<std::string>& listed) {
  BASED_ASSERT(choices.size() == answers.size());
  std::vector<double> scores, by_character, by_byte;
  for (size_t i = 0; i < choices.size(); ++i) {
    const double score = answers[i].log_likelihood;
    scores.push_back(score);
    by_character.push_back(score / static_cast<double>(count_characters(choices[i])));
    by_byte.push_back(score / static_cast<double>(choices[i].size()));
  }
  const auto right = static_cast<size_t>(gold);
  const auto is_right = [right](std::span<const double> values) { return first_largest(values) == right ? 1.0 : 0.0; };
  const std::pair<const char*, double> metrics[] = {{"acc", is_right(scores)},
                                                    {"acc_norm", is_right(by_character)},
                                                    {"acc_bytes", is_right(by_byte)},
                                                    {"exact_match", answers[right].greedy ? 1.0 : 0.0}};
  Json measured = Json::object(), further = Json::object();
  for (const auto& [name, value] : metrics)
    (std::find(listed.begin(), listed.end(), name) != listed.end() ? measured : further)[name] = value;
  measured["further"] = std::move(further);
  return measured;
}

}  // namespace based
