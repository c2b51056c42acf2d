// FDA: a document, and the name of a field of its header whose value is asked for.
#include <array>

#include "based/eval/tasks/contains.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

constexpr std::array<const char*, 5> kFdaKeys{"Title", "Author", "Status", "Type", "Created"};

// The value of a field of a PEP's header: the rest of its line. None if the header lacks the field, or if the value is empty or continues
// on the next line.
std::optional<std::string> fda_value(std::string_view header, const std::string& key) {
  for (size_t at = 0; at < header.size();) {
    const size_t end = std::min(header.find('\n', at), header.size());
    const std::string_view line = header.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(key + ":")) continue;
    const std::string_view value = python_strip(line.substr(key.size() + 1));
    const bool continued = at < header.size() && (header[at] == ' ' || header[at] == '\t');
    if (value.empty() || continued) return std::nullopt;
    return std::string(value);
  }
  return std::nullopt;
}

std::optional<std::array<std::string, kFdaKeys.size()>> fda_values(const std::string& text) {
  const std::string_view header = std::string_view(text).substr(0, text.find("\n\n"));
  std::array<std::string, kFdaKeys.size()> values;
  for (size_t i = 0; i < kFdaKeys.size(); ++i) {
    std::optional<std::string> value = fda_value(header, kFdaKeys[i]);
    if (!value) return std::nullopt;
    values[i] = std::move(*value);
  }
  return values;
}

bool is_longer(const Tokenizer& tokenizer, const std::string& text, int64_t tokens) {
  return static_cast<int64_t>(text.size()) > tokens && static_cast<int64_t>(tokenizer.encode(text, Specials::recognised).size()) > tokens;
}

// The PEPs of more than kRecallDocumentTokens tokens whose header has all five fields on a line each. Document i asks for field i mod 5.
std::unique_ptr<EvalTask> read_fda(const EvalTaskOptions& options) {
  std::vector<RecallPrompt> prompts;
  const std::string path = data_file(options, "text-technical-docs/docs.jsonl");
  read_json_lines(path, [&](const DataField& line, int64_t) {
    if (line.text("source") != "python/peps") return;
    const std::string& text = line.text("text");
    auto values = fda_values(text);
    if (!values || !is_longer(*options.tokenizer, text, kRecallDocumentTokens)) return;
    const size_t asked = prompts.size() % kFdaKeys.size();
    const std::string key = kFdaKeys[asked];
    prompts.push_back({.document = text,
                       .ending = "\n" + key + ":",
                       .value = std::move((*values)[asked]),
                       .place = line.place(),
                       .source = {{"id", line.text("id")}, {"key", python_lower(key)}}});
  });
  if (prompts.empty()) throw Error(path + ": has no PEP of more than " + std::to_string(kRecallDocumentTokens) + " tokens");
  return make_recall_task(std::move(prompts), options.tokenizer);
}

}  // namespace

EvalTaskKind eval_task_fda() {
  return {.name = "fda",
          .summary = "header fields of Python's enhancement proposals, zero-shot; our own documents in the form of FDA",
          .headline = "contains",
          .comparable = false,
          .version = "1",
          .make = read_fda};
}

EvalTaskKind eval_task_fda_published() {
  return published_recall_kind("fda_published", "based-fda/validation.jsonl", "hazyresearch/based-fda");
}

}  // namespace based
