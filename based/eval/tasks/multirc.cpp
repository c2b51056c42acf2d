// SuperGLUE's MultiRC: whether an answer to a question about a paragraph is right. Every (question, answer) pair is a document.
#include <cctype>
#include <map>
#include <memory>
#include <utility>

#include "based/core/utf8.h"
#include "based/eval/tasks/statistics.h"
#include "based/eval/tasks/superglue.h"

namespace based {

namespace {

// The value of Python's literal '''…''' with these contents. lm-eval evaluates its choices as literals, so that a backslash in an answer
// starts an escape. Answers that Python refuses, and escapes of Unicode names, throw Error.
class PythonLiteral {
 public:
  PythonLiteral(std::string contents, const DataField& field) : contents_(std::move(contents)), field_(field) {
    if (contents_.find("'''") != std::string::npos) field_.refuse("text without '''");
  }

  std::string value() {
    std::string text;
    while (at_ < contents_.size()) {
      const char byte = contents_[at_++];
      if (byte == '\r') {  // Python reads every kind of line break as \n
        if (at_ < contents_.size() && contents_[at_] == '\n') ++at_;
        text += '\n';
      } else if (byte != '\\' || at_ == contents_.size()) {
        text += byte;
      } else {
        append_escape(text);
      }
    }
    return text;
  }

 private:
  void append_escape(std::string& text) {
    static constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const char kind = contents_[at_++];
    if (const size_t known = kNames.find(kind); known != std::string_view::npos) {
      text += kValues[known];
    } else if (kind >= '0' && kind <= '7') {
      --at_;
      append_number(text, 8, 1, 3);
    } else if (kind == 'x' || kind == 'u' || kind == 'U') {
      const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
      append_number(text, 16, digits, digits);
    } else if (kind == 'N') {
      field_.refuse("text without the escape \\N");
    } else if (kind == '\r') {
      if (at_ < contents_.size() && contents_[at_] == '\n') ++at_;
    } else if (kind != '\n') {  // a backslash joins lines; other escapes are no escapes
      text += '\\';
      text += kind;
    }
  }

  void append_number(std::string& text, int base, size_t least, size_t most) {
    size_t digits = 0;
    char32_t code = 0;
    for (; digits < most && at_ < contents_.size(); ++digits, ++at_) {
      const auto byte = static_cast<unsigned char>(contents_[at_]);
      const int digit = std::isdigit(byte) ? byte - '0' : std::isxdigit(byte) ? std::tolower(byte) - 'a' + 10 : base;
      if (digit >= base) break;
      code = code * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (digits < least || code > 0x10ffff || surrogate) field_.refuse("text whose escapes are characters");
    append_utf8(code, text);
  }

  std::string contents_;
  const DataField& field_;
  size_t at_ = 0;
};

std::string multirc_choice(const DataField& answer, const char* word) {
  return PythonLiteral(answer.text("text") + "\\nIs the answer correct? " + word, answer.at("text")).value();
}

void read_multirc(const DataField& line, std::vector<ChoiceItem>& items) {
  const DataField passage = line.at("passage");
  const int64_t paragraph = line.integer("idx", 0, INT64_MAX);
  for (const DataField& question : passage.at("questions").items()) {
    const std::string context = passage.text("text") + "\nQuestion: " + question.text("question") + "\nAnswer:";
    const int64_t number = question.integer("idx", 0, INT64_MAX);
    for (const DataField& answer : question.at("answers").items()) {
      // The label is lm-eval's index of the choice, although 1 stands for a right answer.
      items.push_back({.source = {{"paragraph", paragraph}, {"question", number}, {"answer", answer.integer("idx", 0, INT64_MAX)}},
                       .context = context,
                       .choices = {multirc_choice(answer, "yes"), multirc_choice(answer, "no")},
                       .gold = answer.index("label", 2)});
    }
  }
}

// With acc_all beside the accuracy of pairs: the share of questions all of whose answers are judged right. Its standard error groups by
// the number of the question alone, as in lm-eval.
class MultiRcTask : public FewShotChoiceTask {
 public:
  using FewShotChoiceTask::FewShotChoiceTask;

  EvalFigures aggregate(std::span<const EvalDocument> documents, std::span<const Json> measured) const override {
    EvalFigures figures = FewShotChoiceTask::aggregate(documents, measured);
    std::map<std::pair<int64_t, int64_t>, double> by_paragraph_and_question;
    std::map<int64_t, double> by_question;
    for (size_t i = 0; i < documents.size(); ++i) {
      const auto paragraph = documents[i].source.at("paragraph").get<int64_t>(),
                 question = documents[i].source.at("question").get<int64_t>();
      const double right = measured[i].at("acc").get<double>();
      by_paragraph_and_question.try_emplace({paragraph, question}, 1.0).first->second *= right;
      by_question.try_emplace(question, 1.0).first->second *= right;
    }
    figures.further["acc_all"] = {mean(values(by_paragraph_and_question)), mean_standard_error(values(by_question))};
    return figures;
  }

 private:
  template <class Key>
  static std::vector<double> values(const std::map<Key, double>& map) {
    std::vector<double> values;
    values.reserve(map.size());
    for (const auto& [key, value] : map) values.push_back(value);
    return values;
  }
};

std::unique_ptr<EvalTask> make_multirc(const EvalTaskOptions& options) {
  SuperGlueData data = read_superglue(options, {"superglue/MultiRC/val.jsonl", "superglue/MultiRC/train.jsonl"}, read_multirc);
  return std::make_unique<MultiRcTask>(std::move(data.items), std::vector<std::string>{"acc"}, std::move(data.pool));
}

}  // namespace

EvalTaskKind eval_task_multirc() {
  return {.name = "multirc",
          .summary = "whether an answer to a question about a paragraph is right (superglue/MultiRC)",
          .headline = "acc",
          .chance = 0.5,
          .few_shot = true,
          .version = "2.0",
          .make = make_multirc};
}

}  // namespace based
