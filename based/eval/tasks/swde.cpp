// SWDE: a web page, and the names and values of its attributes up to the value that is asked for.
#include <algorithm>

#include "based/eval/tasks/contains.h"
#include "based/eval/tasks/json_reader.h"
#include "based/eval/tasks/python_text.h"

namespace based {
namespace {

constexpr int64_t kSwdeStride = 62;  // pages between two documents, so that the first documents are of both sites

struct SwdeAttribute {
  std::string key, value;
};

std::string swde_key(std::string name) {
  for (char& c : name)
    if (c == '_') c = ' ';
  return name;
}

// The first value of an attribute. Those of one site begin with the colon that the page has before them.
std::string swde_value(const DataField& values) {
  const std::vector<std::string> all = values.texts();
  if (all.empty()) values.refuse("a list of at least one value");
  std::string_view value = python_strip(all.front());
  if (value.starts_with(':')) value = python_strip(value.substr(1));
  if (value.empty()) values.refuse("a list whose first value has a text");
  return std::string(value);
}

struct SwdePage {
  std::string text, page, place;
  std::vector<SwdeAttribute> attributes = {};
};

RecallPrompt swde_prompt(const SwdePage& page, int64_t row, size_t asked) {
  std::string ending = "\n\nSummary of information above...\n";
  for (size_t i = 0; i < asked; ++i) ending += page.attributes[i].key + ": " + page.attributes[i].value + "\n";
  const SwdeAttribute& attribute = page.attributes[asked];
  return {.document = page.text,
          .ending = ending + attribute.key + ":",
          .value = attribute.value,
          .place = page.place,
          .source = {{"row", row}, {"page", page.page}, {"key", attribute.key}}};
}

// Document i asks for attribute i mod 5 of a page. The pages are every 62nd one from the first on, then every 62nd one from the second on,
// and so on, so that each page is a document.
std::unique_ptr<EvalTask> read_swde(const EvalTaskOptions& options) {
  std::vector<SwdePage> pages;
  read_json_lines(data_file(options, "swde/book_two_sites_text.jsonl"), [&](const DataField& line, int64_t) {
    SwdePage page{.text = line.text("text"), .page = line.text("site") + "/" + line.text("page"), .place = line.place()};
    const DataField attributes = line.at("attributes");
    if (!attributes.value().is_object() || attributes.value().empty()) attributes.refuse("an object of lists of values");
    for (const auto& item : attributes.value().items())
      page.attributes.push_back({swde_key(item.key()), swde_value(attributes.at(item.key()))});
    pages.push_back(std::move(page));
  });
  std::vector<RecallPrompt> prompts;
  const auto count = static_cast<int64_t>(pages.size());
  for (int64_t first = 0; first < std::min(kSwdeStride, count); ++first) {
    for (int64_t row = first; row < count; row += kSwdeStride) {
      const SwdePage& page = pages[static_cast<size_t>(row)];
      prompts.push_back(swde_prompt(page, row, prompts.size() % page.attributes.size()));
    }
  }
  return make_recall_task(std::move(prompts), options.tokenizer);
}

}  // namespace

EvalTaskKind eval_task_swde() {
  return {.name = "swde",
          .summary = "attributes of book pages, zero-shot; our own documents in the form of SWDE",
          .headline = "contains",
          .comparable = false,
          .version = "1",
          .make = read_swde};
}

EvalTaskKind eval_task_swde_published() {
  return published_recall_kind("swde_published", "based-swde/validation.jsonl", "hazyresearch/based-swde-v2");
}

}  // namespace based
