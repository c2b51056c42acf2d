// Generates from all prompts of a file by one engine, whose slots are filled again as sequences end.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/generate/text_generator.h"

namespace based {

// The options of a prompt whose line does not set them.
struct PromptDefaults {
  SequenceOptions options;
  std::vector<std::string> stops;
};

// The seed of the prompt with this index if its line has none: a mix of `seed` and `index` that is the same in every run.
int64_t seed_of_line(int64_t seed, int64_t index);

// JSON lines, each an object: "prompt" (text) or "ids" (token ids), and in place of the defaults "max_tokens", "temperature", "top_k",
// "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias" ({"<token id>": number}), "seed", "stop" (a
// string or a list of strings). "id" may be any value and is copied to the result. Empty lines are skipped. A line without a seed has
// seed_of_line() of the defaults' seed and its index, so that equal lines do not get equal results.
class PromptsFile {
 public:
  explicit PromptsFile(const std::string& path);  // throws Error if it cannot be read

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  // Throws Error as "<path>:<line>: reason". `id`, if not null, receives the line's.
  TextRequest request(int64_t index, const Tokenizer& tokenizer, const PromptDefaults& defaults, Json* id = nullptr) const;
  Json id(int64_t index) const;            // null if there is none, or if the line is invalid
  std::string place(int64_t index) const;  // "<path>:<line>"
  std::string hash() const;                // the whole file's
  // The largest number of tokens that a sequence may have at its end, at most INT64_MAX; invalid lines do not count.
  int64_t longest(const Tokenizer& tokenizer, const PromptDefaults& defaults) const;

 private:
  Json parse(int64_t index) const;
  struct Line {
    size_t begin, length;
    int64_t number;
  };
  std::string path_, text_;
  std::vector<Line> lines_;
};

struct BatchReport {
  int64_t prompts = 0, kept = 0, kept_failed = 0;  // kept: results of an earlier run; kept_failed: those of them that are errors
  int64_t finished = 0, failed = 0;                // this run's
  int64_t prompt_tokens = 0, tokens = 0;           // this run's
  double seconds = 0;
  bool interrupted = false;
};

// Results are written to `out`, one JSON object per prompt, in the order of the file. Until all are finished they are stored in
// `out`.partial in the order in which they finish; a killed run leaves that file, and `resume` continues from it. Without `out`, results
// are passed to `print` in the order of the file, each as soon as all before it are finished. Throws Error if another process writes to
// `out`. `run`: everything that determines the results (model, options); a resumed run must have the same (UsageError). If the disk is
// full, the run ends with an Error that says which results are kept and how to continue.
struct BatchOutput {
  std::string out;
  bool resume = false;
  Json run;
  std::function<void(const std::string& line)> print;
};
// An invalid line, or one that never fits into the cache, gives {"index", "error"}; the other lines run. A line whose logits are not finite
// has an error too, in addition to the tokens before. Stops at a signal and keeps the finished results.
BatchReport generate_batch(Engine& engine, const Tokenizer& tokenizer, const PromptsFile& prompts, const PromptDefaults& defaults,
                           const BatchOutput& output);

}  // namespace based
