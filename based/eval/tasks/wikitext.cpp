#include "based/eval/tasks/wikitext.h"

#include <array>
#include <utility>

#include "based/core/files.h"
#include "based/core/utf8.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/python_text.h"
#include "based/eval/tasks/statistics.h"

namespace based {
namespace {

// Removes white space on the inner sides of brackets or quotation marks. `open` is closed by the next `close`, so that inner brackets of
// the same kind do not count.
std::string tightened(std::string_view text, char open, char close) {
  std::string out;
  while (!text.empty()) {
    const size_t start = text.find(open);
    const size_t end = start == std::string_view::npos ? start : text.find(close, start + 1);
    if (end == std::string_view::npos) break;
    out += text.substr(0, start + 1);
    out += python_strip(text.substr(start + 1, end - start - 1));
    out += close;
    text.remove_prefix(end + 1);
  }
  return out += text;
}

// lm-eval's rule for contractions, re.sub(r"/' [0-9]/", r"/'[0-9]/"): the slashes are part of the pattern and of the replacement.
std::string slashed_contractions(std::string_view text) {
  constexpr std::string_view kStart = "/' ";
  std::string out;
  size_t at = 0;
  for (size_t found = 0; (found = text.find(kStart, at)) != std::string_view::npos;) {
    const size_t digit = found + kStart.size();
    const bool matches = digit + 1 < text.size() && text[digit] >= '0' && text[digit] <= '9' && text[digit + 1] == '/';
    out += text.substr(at, found - at);
    out += matches ? "/'[0-9]/" : "/";
    at = matches ? digit + 2 : found + 1;
  }
  return out += text.substr(at);
}

std::string replaced(std::string text, std::span<const std::array<std::string_view, 2>> rules) {
  for (const auto& [from, to] : rules) text = replace_all(text, from, to);
  return text;
}

class WikitextTask : public EvalTask {
 public:
  explicit WikitextTask(const std::string& path) : path_(path) {
    const std::string text = read_file(path);
    if (!is_valid_utf8(text)) refuse_utf8(text);
    pages_ = wikitext_pages(text);
    if (pages_.empty()) throw Error(path + ": there are no pages in this file");
  }

  int64_t size() const override { return static_cast<int64_t>(pages_.size()); }

  EvalDocument document(int64_t index) const override {
    const std::string& page = pages_[static_cast<size_t>(index)];
    EvalDocument document;
    document.place = path_ + ": page " + std::to_string(index);
    document.source = {{"page", index}};
    document.contexts = {""};
    document.requests.push_back({.kind = EvalRequest::Kind::rolling, .continuation = wikitext_detokenized(page)});
    document.fields = {{"page", page}, {"words", count_split_pieces(page)}, {"bytes", page.size()}};
    return document;
  }

  Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const override {
    const Json by_word = {answers[0].log_likelihood, document.fields.at("words")};
    const Json by_byte = {answers[0].log_likelihood, document.fields.at("bytes")};
    return {{"word_perplexity", by_word}, {"byte_perplexity", by_byte}, {"bits_per_byte", by_byte}};
  }

  EvalFigures aggregate(std::span<const EvalDocument>, std::span<const Json> measured) const override {
    const auto weighted = [measured](const char* metric) {
      std::vector<WeightedLikelihood> pages;
      for (const Json& page : measured) pages.push_back({page.at(metric).at(0).get<double>(), page.at(metric).at(1).get<int64_t>()});
      return pages;
    };
    EvalFigures figures;
    figures.metrics["word_perplexity"].value = weighted_perplexity(weighted("word_perplexity"));
    figures.metrics["byte_perplexity"].value = weighted_perplexity(weighted("byte_perplexity"));
    figures.metrics["bits_per_byte"].value = bits_per_byte(weighted("bits_per_byte"));
    return figures;
  }

 private:
  [[noreturn]] void refuse_utf8(std::string_view text) const {
    int64_t line = 1;
    for (const char *at = text.data(), *end = at + text.size(); at < end;) {
      const Utf8Char c = utf8_at(at, end);
      if (c.code == kInvalidUtf8) break;
      line += c.code == '\n';
      at += c.size;
    }
    throw Error(path_ + ":" + std::to_string(line) + ": the text is not valid UTF-8");
  }

  std::string path_;
  std::vector<std::string> pages_;
};

}  // namespace

std::string wikitext_detokenized(std::string_view page) {
  constexpr std::array<std::string_view, 2> kPunctuation[] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
                                                              {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}};
  constexpr std::array<std::string_view, 2> kOther[] = {{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \u00b0 ", "\u00b0"},
                                                        {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"}};
  std::string text = replaced(slashed_contractions(replace_all(page, "s '", "s'")), kPunctuation);
  for (const auto& [open, close] :
       {std::pair('(', ')'), std::pair('[', ']'), std::pair('{', '}'), std::pair('"', '"'), std::pair('\'', '\'')})
    text = tightened(text, open, close);
  return replaced(std::move(text), kOther);
}

std::vector<std::string> wikitext_pages(std::string_view text) {
  std::vector<std::string> pages;
  size_t start = 0;
  const auto add_page = [&](size_t end) {
    const std::string_view page = text.substr(start, end - start);
    if (!python_strip(page).empty()) pages.emplace_back(page);
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string title = replace_all(replace_all(python_strip(text.substr(at, end - at)), "= = =", "==="), "= =", "==");
    if (title.starts_with("= ") && title.ends_with(" =")) {
      if (at > 0) add_page(at - 1);
      start = at;
    }
    at = end + 1;
  }
  add_page(text.size());
  return pages;
}

EvalTaskKind eval_task_wikitext() {
  return {.name = "wikitext",
          .summary = "WikiText-2: perplexity a word and a byte of whole pages (wikitext-2/wiki.test.raw)",
          .headline = "word_perplexity",
          .version = "2.0",
          .make = [](const EvalTaskOptions& options) {
            return std::make_unique<WikitextTask>(data_file(options, "wikitext-2/wiki.test.raw"));
          }};
}

}  // namespace based
