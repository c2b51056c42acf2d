#include "based/eval/tasks/contains.h"

#include <algorithm>

#include "based/core/log.h"
#include "based/core/utf8.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

struct SharedCase {
  char32_t character, representative;
};

// Lower-case characters that re.IGNORECASE takes as equal although their lower case differs (CPython 3.12, re/_casefix.py), sorted.
constexpr SharedCase kSharedCases[]{{0xb5, 0x3bc},      // µ, μ
                                    {0x131, 'i'},       // ı
                                    {0x17f, 's'},       // ſ
                                    {0x345, 0x3b9},     // combining iota, ι
                                    {0x3c2, 0x3c3},     // ς, σ
                                    {0x3d0, 0x3b2},     // ϐ, β
                                    {0x3d1, 0x3b8},     // ϑ, θ
                                    {0x3d5, 0x3c6},     // ϕ, φ
                                    {0x3d6, 0x3c0},     // ϖ, π
                                    {0x3f0, 0x3ba},     // ϰ, κ
                                    {0x3f1, 0x3c1},     // ϱ, ρ
                                    {0x3f5, 0x3b5},     // ϵ, ε
                                    {0x1c80, 0x432},    // rounded ve, в
                                    {0x1c81, 0x434},    // long-legged de, д
                                    {0x1c82, 0x43e},    // narrow o, о
                                    {0x1c83, 0x441},    // wide es, с
                                    {0x1c84, 0x442},    // tall te, т
                                    {0x1c85, 0x442},    // three-legged te, т
                                    {0x1c86, 0x44a},    // tall hard sign, ъ
                                    {0x1c87, 0x463},    // tall yat, ѣ
                                    {0x1c88, 0xa64b},   // unblended uk, ꙋ
                                    {0x1e9b, 0x1e61},   // ẛ, ṡ
                                    {0x1fbe, 0x3b9},    // prosgegrammeni, ι
                                    {0x1fd3, 0x390},    // ΐ, ΐ
                                    {0x1fe3, 0x3b0},    // ΰ, ΰ
                                    {0xfb05, 0xfb06}};  // ſt, st

constexpr char32_t kFirstInvalid = 0x110000;  // + byte: a byte that is not UTF-8

// Equal for two characters if and only if re.IGNORECASE matches one with the other.
char32_t case_class(char32_t character) {
  if (character >= kFirstInvalid) return character;
  if (character == 0x130) return 'i';  // its lower case has two characters; re takes the first one
  const char32_t lower = python_lower(character);
  const auto* shared = std::lower_bound(std::begin(kSharedCases), std::end(kSharedCases), lower,
                                        [](const SharedCase& each, char32_t wanted) { return each.character < wanted; });
  return shared != std::end(kSharedCases) && shared->character == lower ? shared->representative : lower;
}

std::u32string case_classes(std::string_view text) {
  std::u32string classes;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const Utf8Char c = utf8_at(at, end);
    classes += c.code == kInvalidUtf8 ? kFirstInvalid + static_cast<unsigned char>(*at) : case_class(c.code);
    at += c.size;
  }
  return classes;
}

class RecallTask final : public EvalTask {
 public:
  RecallTask(std::vector<RecallPrompt> prompts, const Tokenizer* tokenizer) : prompts_(std::move(prompts)), tokenizer_(tokenizer) {}

  int64_t size() const override { return static_cast<int64_t>(prompts_.size()); }

  EvalDocument document(int64_t index) const override {
    const RecallPrompt& prompt = prompts_.at(static_cast<size_t>(index));
    EvalDocument document;
    document.place = prompt.place;
    document.source = prompt.source;
    document.gold = prompt.value;
    const std::string text = tokenizer_ == nullptr ? prompt.document : first_tokens(*tokenizer_, prompt.document, kRecallDocumentTokens);
    document.contexts = {text + prompt.ending};
    EvalRequest& request = document.requests.emplace_back();
    request.kind = EvalRequest::Kind::generate;
    request.until = {"\n"};
    request.max_tokens = kRecallAnswerTokens;
    return document;
  }

  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    const std::string& text = answers.front().text;
    const std::string value = document.gold.get<std::string>();
    Json further{{"exact", squad_exact(text, value) ? 1 : 0}, {"f1", squad_f1(text, value)}};
    return {{"contains", contains_ignoring_case(text, value) ? 1 : 0}, {"further", std::move(further)}};
  }

  EvalFigures aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const override {
    double contains = 0, exact = 0, f1 = 0;
    for (const Json& each : measured) {
      contains += each["contains"].get<double>();
      exact += each["further"]["exact"].get<double>();
      f1 += each["further"]["f1"].get<double>();
    }
    const auto mean = [&](double sum) { return EvalFigure{sum / static_cast<double>(measured.size()), std::nullopt}; };
    return {.metrics = {{"contains", mean(contains)}}, .further = {{"exact", mean(exact)}, {"f1", mean(f1)}}};
  }

 private:
  std::vector<RecallPrompt> prompts_;
  const Tokenizer* tokenizer_;
};

}  // namespace

bool contains_ignoring_case(std::string_view text, std::string_view label) {
  return case_classes(text).find(case_classes(label)) != std::u32string::npos;
}

std::string first_tokens(const Tokenizer& tokenizer, const std::string& text, int64_t count) {
  const std::vector<int32_t> ids = tokenizer.encode(text, Specials::recognised);
  if (static_cast<int64_t>(ids.size()) <= count) return text;
  std::string cut = tokenizer.decode(std::span(ids).first(static_cast<size_t>(count)));
  // At most the last three bytes are the beginning of a character that is cut.
  for (size_t back = 1; back <= std::min<size_t>(3, cut.size()); ++back) {
    const char* at = cut.data() + cut.size() - back;
    const auto byte = static_cast<unsigned char>(*at);
    if (byte >= 0xc0 && utf8_at(at, cut.data() + cut.size()).code == kInvalidUtf8) {
      cut.resize(cut.size() - back);
      append_utf8(0xfffd, cut);
      break;
    }
    if ((byte & 0xc0) != 0x80) break;
  }
  return cut;
}

std::unique_ptr<EvalTask> make_recall_task(std::vector<RecallPrompt> prompts, const Tokenizer* tokenizer) {
  return std::make_unique<RecallTask>(std::move(prompts), tokenizer);
}

std::unique_ptr<EvalTask> read_published_recall(const std::string& path) {
  std::vector<RecallPrompt> prompts;
  int64_t without_value = 0;
  read_json_lines(path, [&](const DataField& line, int64_t) {
    Json source = Json::object();
    for (const auto& [key, value] : line.value().items())
      if (key != "text" && key != "value" && (value.is_string() || value.is_number_integer())) source[key] = value;
    const std::string_view text = python_strip(line.text("text"));
    if (text.empty()) line.at("text").refuse("a text that is not only white space");
    const std::string_view value = python_strip(line.text("value"));
    without_value += value.empty();
    prompts.push_back({.document = "", .ending = std::string(text), .value = std::string(value), .place = line.place(), .source = source});
  });
  if (without_value > 0)
    log_warning(path + ": the value of " + std::to_string(without_value) + " of " + std::to_string(prompts.size()) +
                " lines is empty, which lm-eval counts as contained in every answer");
  return make_recall_task(std::move(prompts), nullptr);
}

EvalTaskKind published_recall_kind(const std::string& name, const std::string& file, const std::string& set) {
  return {.name = name,
          .summary = "the published set " + set + " as JSON lines, in " + file,
          .headline = "contains",
          .version = "1",
          .make = [file](const EvalTaskOptions& options) { return read_published_recall(data_file(options, file)); }};
}

}  // namespace based
