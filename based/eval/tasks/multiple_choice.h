// Multiple-choice tasks: the log-likelihood of each choice after one context.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "based/eval/task.h"

namespace based {

// The continuation of a choice is a delimiter, which is this one in lm-eval's tasks, and the choice.
inline constexpr const char* kChoiceDelimiter = " ";

struct ChoiceItem {
  std::string place = {};  // "<file>:<line>"
  Json source = {};
  std::string context = {};
  std::vector<std::string> choices = {};  // without the delimiter
  int64_t gold = 0;                       // index into `choices`
  Json fields = {};                       // EvalDocument::fields
};

// Examples that precede a document's context.
struct FewShotExamples {
  std::vector<int64_t> indices;  // into the pool, in order
  std::string text;              // all of it, with what separates it from the context
};

class MultipleChoiceTask : public EvalTask {
 public:
  // `listed` are the metrics that lm-eval lists for the task, out of acc, acc_norm, acc_bytes and exact_match. The others are further ones.
  MultipleChoiceTask(std::vector<ChoiceItem> items, std::vector<std::string> listed, std::string delimiter = kChoiceDelimiter);

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  EvalDocument document(int64_t index) const override;
  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override;
  EvalFigures aggregate(std::span<const EvalDocument> documents, std::span<const Json> measured) const override;

 protected:
  const std::vector<ChoiceItem>& items() const { return items_; }
  virtual FewShotExamples examples(int64_t /*document*/) const { return {}; }

 private:
  std::vector<ChoiceItem> items_;
  std::vector<std::string> listed_;
  std::string delimiter_;
};

// The index of the largest value, the first of equals.
size_t first_largest(std::span<const double> values);

// The metrics of one document: {"acc": 1, …, "further": {…}}. There is one answer for each choice; acc_norm and acc_bytes divide by the
// lengths of `choices`.
//   acc         the gold choice has the largest log-likelihood
//   acc_norm    … the largest log-likelihood by code point of its text
//   acc_bytes   … the largest log-likelihood by byte of its text in UTF-8
//   exact_match greedy decoding would produce the gold choice
Json measure_choices(std::span<const std::string> choices, int64_t gold, std::span<const EvalAnswer> answers,
                     const std::vector<std::string>& listed);

}  // namespace based
