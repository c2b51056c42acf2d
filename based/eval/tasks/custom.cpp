#include "based/eval/tasks/custom.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "based/core/text.h"
#include "based/eval/tasks/completion.h"
#include "based/eval/tasks/contains.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/multiple_choice.h"
#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

// A task's file, and the places of its keys for messages.
struct CustomTaskFile {
  std::string path;
  Config config;
  CustomTaskConfig task;

  [[noreturn]] void refuse(const std::string& key, const std::string& problem) const {
    const Config* value = config.find(key);
    throw UsageError((value ? value->where() : path + ": ") + in_quotes(key) + " " + problem);
  }
  // Calls `read`, and adds the key to the message of an Error in the data.
  template <class Read>
  auto reading(const std::string& key, const Read& read) const {
    try {
      return read();
    } catch (const Error& error) {
      const Config* value = config.find(key);
      throw Error(std::string(error.what()) + "; " + (value ? value->where() : path + ": ") + in_quotes(key) + " refers to it");
    }
  }
  const char* choices_key() const { return config.find("choices") ? "choices" : "choices_field"; }
  bool has_choices() const { return config.find(choices_key()) != nullptr; }
  bool is_generated() const { return !has_choices() && (task.metric == "contains" || task.metric == "exact" || task.metric == "f1"); }
};

// A field of a line, by its name or by a path of names: "passage.text".
DataField field_of_line(const DataField& line, const std::string& path) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) return line.at(path);
  return field_of_line(line.at(path.substr(0, dot)), path.substr(dot + 1));
}

std::string text_of_field(const DataField& field) {
  if (field.value().is_number() || field.value().is_boolean()) return dump_json(field.value());
  if (!field.value().is_string()) field.refuse("a string, a number, true or false");
  return field.text();
}

class LineTemplate {
 public:
  LineTemplate(const CustomTaskFile& file, const std::string& key, const std::string& text) {
    std::string literal;
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
        literal += c;
        ++at;
      } else if (c == '{') {
        const size_t end = text.find('}', at);
        if (end == std::string::npos) file.refuse(key, "has '{' without '}'; a brace in the text is written {{");
        if (end == at + 1) file.refuse(key, "has '{}' without the name of a field");
        parts_.push_back({std::move(literal), text.substr(at + 1, end - at - 1)});
        literal.clear();
        at = end;
      } else if (c == '}') {
        file.refuse(key, "has '}' without '{'; a brace in the text is written }}");
      } else {
        literal += c;
      }
    }
    end_ = std::move(literal);
  }

  std::string filled(const DataField& line) const {
    std::string text;
    for (const Part& part : parts_) text += part.literal + text_of_field(field_of_line(line, part.field));
    return text + end_;
  }

 private:
  struct Part {
    std::string literal, field;
  };
  std::vector<Part> parts_;
  std::string end_;
};

std::vector<LineTemplate> choice_templates(const CustomTaskFile& file) {
  std::vector<LineTemplate> templates;
  for (const std::string& choice : file.task.choices) templates.emplace_back(file, "choices", choice);
  return templates;
}

std::vector<std::string> choices_of_line(const CustomTaskFile& file, const std::vector<LineTemplate>& templates, const DataField& line) {
  if (templates.empty()) {
    const DataField list = field_of_line(line, file.task.choices_field);
    std::vector<std::string> choices = list.texts();
    if (choices.size() < 2) list.refuse("a list of at least two strings");
    return choices;
  }
  std::vector<std::string> choices;
  choices.reserve(templates.size());
  for (const LineTemplate& choice : templates) choices.push_back(choice.filled(line));
  return choices;
}

int64_t gold_of_line(const CustomTaskFile& file, const std::vector<std::string>& choices, const DataField& line) {
  const DataField gold = field_of_line(line, file.task.gold);
  const std::vector<std::string>& texts = file.task.labels.empty() ? choices : file.task.labels;
  if (file.task.labels.empty() && gold.value().is_number_integer()) return gold.integer(0, static_cast<int64_t>(choices.size()) - 1);
  const auto found = std::find(texts.begin(), texts.end(), text_of_field(gold));
  if (found == texts.end() && file.task.labels.empty() && gold.value().is_boolean() && choices.size() == 2) return gold.boolean() ? 1 : 0;
  if (found == texts.end()) gold.refuse(file.task.labels.empty() ? "the index or the text of a choice" : "one of the labels");
  const auto index = found - texts.begin();
  if (index >= static_cast<int64_t>(choices.size())) gold.refuse("the label of one of " + std::to_string(choices.size()) + " choices");
  return index;
}

std::unique_ptr<EvalTask> make_custom_choices(const CustomTaskFile& file, const std::string& data) {
  const LineTemplate context(file, "context", file.task.context);
  const std::vector<LineTemplate> templates = choice_templates(file);
  std::vector<ChoiceItem> items;
  read_json_lines(data, [&](const DataField& line, int64_t row) {
    ChoiceItem item{.place = line.place(), .source = {{"row", row}}, .context = "", .choices = {}};
    item.context = file.reading("context", [&] { return context.filled(line); });
    item.choices = file.reading(file.choices_key(), [&] { return choices_of_line(file, templates, line); });
    item.gold = file.reading("gold", [&] { return gold_of_line(file, item.choices, line); });
    items.push_back(std::move(item));
  });
  std::vector<std::string> listed{"acc", "acc_norm"};
  if (file.task.metric != "acc" && file.task.metric != "acc_norm") listed.push_back(file.task.metric);
  return std::make_unique<MultipleChoiceTask>(std::move(items), std::move(listed), file.task.delimiter);
}

// Text generated after each context, compared with the expected text.
class GeneratedTask : public EvalTask {
 public:
  // The continuation of an item is the expected text.
  GeneratedTask(std::vector<CompletionItem> items, std::vector<std::string> until, int64_t max_tokens)
      : items_(std::move(items)), until_(std::move(until)), max_tokens_(max_tokens) {}

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }

  EvalDocument document(int64_t index) const override {
    const CompletionItem& item = items_[static_cast<size_t>(index)];
    EvalDocument document;
    document.place = item.place;
    document.source = item.source;
    document.contexts = {item.context};
    document.requests.push_back({.kind = EvalRequest::Kind::generate, .continuation = "", .until = until_, .max_tokens = max_tokens_});
    document.gold = item.continuation;
    return document;
  }

  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    const std::string& text = answers[0].text;
    const std::string& expected = items_[static_cast<size_t>(document.index)].continuation;
    return {{"contains", contains_ignoring_case(text, expected) ? 1 : 0},
            {"exact", squad_exact(text, expected) ? 1 : 0},
            {"f1", squad_f1(text, expected)}};
  }

  EvalFigures aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const override { return mean_figures(measured); }

 private:
  std::vector<CompletionItem> items_;
  std::vector<std::string> until_;
  int64_t max_tokens_;
};

std::unique_ptr<EvalTask> make_custom_completion(const CustomTaskFile& file, const std::string& data) {
  const LineTemplate context(file, "context", file.task.context);
  std::vector<CompletionItem> items;
  read_json_lines(data, [&](const DataField& line, int64_t row) {
    CompletionItem item{.place = line.place(), .source = {{"row", row}}, .context = "", .continuation = ""};
    item.context = file.reading("context", [&] { return context.filled(line); });
    item.continuation = file.reading("gold", [&] { return text_of_field(field_of_line(line, file.task.gold)); });
    if (!file.is_generated()) item.continuation.insert(0, file.task.delimiter);
    items.push_back(std::move(item));
  });
  if (file.is_generated()) return std::make_unique<GeneratedTask>(std::move(items), file.task.until, file.task.max_tokens);
  return make_completion_task(std::move(items));
}

void check_custom_task(const CustomTaskFile& file) {
  for (const char* key : {"data", "context", "gold"}) {
    if (file.config.find(key) == nullptr) throw UsageError(file.path + ": the key " + in_quotes(key) + " is missing");
  }
  const std::pair<const char*, const std::string*> names[] = {
      {"data", &file.task.data}, {"gold", &file.task.gold}, {"name", &file.task.name}, {"choices_field", &file.task.choices_field}};
  for (const auto& [key, value] : names) {
    if (value->empty() && file.config.find(key) != nullptr) file.refuse(key, "must not be empty");
  }
  const std::vector<std::string> metrics = file.has_choices() ? std::vector<std::string>{"acc", "acc_norm", "acc_bytes", "exact_match"}
                                                              : std::vector<std::string>{"acc", "perplexity", "contains", "exact", "f1"};
  if (std::find(metrics.begin(), metrics.end(), file.task.metric) == metrics.end()) {
    std::string known;
    for (const std::string& metric : metrics) known += (known.empty() ? "" : ", ") + metric;
    file.refuse("metric", "must be one of " + known + (file.has_choices() ? " for a task with choices" : " for a task without choices"));
  }
  if (file.config.find("choices") && file.config.find("choices_field")) file.refuse("choices_field", "must be left out beside 'choices'");
  if (file.config.find("choices") && file.task.choices.size() < 2) file.refuse("choices", "needs at least two choices");
  if (!file.task.labels.empty() && !file.has_choices()) file.refuse("labels", "needs 'choices' or 'choices_field'");
  for (const char* key : {"until", "max_tokens"}) {
    if (file.config.find(key) != nullptr && !file.is_generated())
      file.refuse(key, "has no effect: only the metrics contains, exact and f1 of a task without choices generate text");
  }
  if (file.config.find("delimiter") != nullptr && file.is_generated())
    file.refuse("delimiter", "has no effect: the metric " + file.task.metric + " generates text, and scores no continuation");
  if (!(file.task.chance >= 0 && file.task.chance < 1)) file.refuse("chance", "must be from 0 to below 1");
  if (file.task.max_tokens < 1) file.refuse("max_tokens", "must be at least 1");
  for (const EvalTaskKind& kind : eval_task_kinds()) {
    if (kind.name == file.task.name) file.refuse("name", "is the name of a known task; give another one");
  }
  // Faults of templates are reported before any data are read.
  const LineTemplate context(file, "context", file.task.context);
  const size_t choices = choice_templates(file).size();
  if (choices > 0 && !file.task.labels.empty() && file.task.labels.size() != choices)
    file.refuse("labels", "needs one label for each of the " + std::to_string(choices) + " choices");
}

}  // namespace

EvalTaskKind read_custom_task(const std::string& path) {
  CustomTaskFile file{path, Config::parse_toml_file(path), {}};
  file.task = read_config<CustomTaskConfig>(file.config);
  const std::filesystem::path here(path);
  if (file.config.find("name") == nullptr) file.task.name = here.stem().string();
  check_custom_task(file);
  const std::string data = (here.parent_path() / file.task.data).string();
  return {.name = file.task.name,
          .summary = "the task of " + path,
          .headline = file.task.metric,
          .chance = file.task.chance,
          .make = [file, data](const EvalTaskOptions&) {
            return file.has_choices() ? make_custom_choices(file, data) : make_custom_completion(file, data);
          }};
}

}  // namespace based
