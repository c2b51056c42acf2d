// Recall tasks: a document and the beginning of a statement about it, which the model completes. The metric is `contains`: whether the
// generated text contains the expected value, without regard to case. `swde`, `fda` and `squad_completion` are our own sets in the forms of
// the published ones; `swde_published`, `fda_published` and `squad_completion_published` read the published sets.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "based/eval/task.h"

namespace based {

inline constexpr int64_t kRecallDocumentTokens = 1920;  // a longer document is cut to these
inline constexpr int64_t kRecallAnswerTokens = 48;

// Whether `text` contains `label` as re.search(re.escape(label), text, re.IGNORECASE) finds it: one character matches one character, by
// Unicode's simple lower case and Python's list of characters that share one. Bytes that are not UTF-8 match themselves only.
bool contains_ignoring_case(std::string_view text, std::string_view label);

// The text of the first `count` tokens; all of `text` if it has no more. A character that the cut splits becomes U+FFFD, as in Python.
// Special tokens in the text are recognised.
std::string first_tokens(const Tokenizer& tokenizer, const std::string& text, int64_t count);

struct RecallPrompt {
  std::string document;  // uncut
  std::string ending;    // the rest of the context, after the document's first kRecallDocumentTokens tokens
  std::string value;
  std::string place;  // as EvalDocument::place
  Json source;        // as EvalDocument::source
};

// Greedy generation of at most kRecallAnswerTokens tokens up to a line break. The metrics are `contains`, and further SQuAD's `exact` and
// `f1`. None has a standard error in lm-eval. Documents are cut when they are requested, so `tokenizer` must outlive the task; null: the
// documents are used uncut.
std::unique_ptr<EvalTask> make_recall_task(std::vector<RecallPrompt> prompts, const Tokenizer* tokenizer);

// A published set: JSON lines with the strings `text` and `value` at `path`. As lm-eval does, the text is sent without surrounding white
// space. The other members that are strings or integers become the source.
std::unique_ptr<EvalTask> read_published_recall(const std::string& path);
// The kind of such a task; the file is `file` in the folder of the data sets. `set` names it for messages: "hazyresearch/based-swde-v2".
EvalTaskKind published_recall_kind(const std::string& name, const std::string& file, const std::string& set);

}  // namespace based
