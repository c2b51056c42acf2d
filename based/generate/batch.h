// Any number of prompts out of a file through an engine's slots, which are filled again as sequences end.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "based/core/json.h"
#include "based/generate/text_generator.h"

namespace based {

// What a line of the prompts file may say in place of the command's options.
struct PromptDefaults {
  SequenceOptions options;
  std::vector<std::string> stops;
};

// The seed of the prompt with this index, where its line names none: mixed of both, and the same in every run.
int64_t seed_of_line(int64_t seed, int64_t index);

// JSON lines, each an object: "prompt" (text) or "ids" (token ids), and in place of the defaults "max_tokens", "temperature", "top_k",
// "top_p", "min_p", "repetition_penalty", "seed", "stop" (a text or a list of them); "id", anything, comes back with the result. Empty
// lines are passed over. A line without a seed has seed_of_line of the defaults' seed and its index, so that equal lines get texts of
// their own.
class PromptsFile {
 public:
  explicit PromptsFile(const std::string& path);  // throws Error where it cannot be read

  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  // Throws Error as "<path>:<line>: what is wrong". `id`, where given, becomes the line's.
  TextRequest request(int64_t index, const Tokenizer& tokenizer, const PromptDefaults& defaults, Json* id = nullptr) const;
  Json id(int64_t index) const;            // null where there is none, or where the line is broken
  std::string place(int64_t index) const;  // "<path>:<line>"
  std::string hash() const;                // of all of it
  // The most tokens that a sequence may have at its end, INT64_MAX at most; lines that are broken do not count.
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
  int64_t prompts = 0, kept = 0, kept_failed = 0;  // kept: done by an earlier run; kept_failed: those of them that are errors
  int64_t finished = 0, failed = 0;                // of this run
  int64_t prompt_tokens = 0, tokens = 0;           // of this run
  double seconds = 0;
  bool interrupted = false;
};

// Results go to `out`, one JSON object a prompt, in the order of the file; until all are there, in the order in which they came, to
// `out`.partial, which a killed run leaves and `resume` goes on from. Without `out` they go to `print`, in the order of the file, as soon
// as they can. Throws Error where another process writes to `out`. `run`: what decides the results (model, options); a resumed one must
// have the same (UsageError). Where there is no room the run ends with an Error that says what is kept and how to go on.
struct BatchOutput {
  std::string out;
  bool resume = false;
  Json run;
  std::function<void(const std::string& line)> print;
};
// A line that is broken or can have no room gives {"index", "error"}; the others run. Where the model's logits are not finite, the line has
// an error, too, beside what came before. Stops at a signal, keeping what is finished.
BatchReport generate_batch(Engine& engine, const Tokenizer& tokenizer, const PromptsFile& prompts, const PromptDefaults& defaults,
                           const BatchOutput& output);

}  // namespace based
