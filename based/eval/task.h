// An evaluation task: the documents of a data set, the requests that each document makes of a model, and the metrics of the answers.
// Contexts, continuations, few-shot draws and metrics are those of lm-eval 0.4.13, item by item.
//
// A task `foo` is a function `EvalTaskKind eval_task_foo()` in based/eval/tasks/foo.cpp, and one line in based/eval/tasks.def.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/core/json.h"
#include "based/data/tokenizer.h"

namespace based {

struct EvalRequest {
  enum class Kind {
    score,     // the log-likelihood of `continuation` after the context, and whether greedy decoding would produce it
    rolling,   // the log-likelihood of the whole text `continuation`, read in windows of the model's length; the context is ""
    generate,  // greedy decoding after the context, up to a stop string or max_tokens
  };
  Kind kind = Kind::score;
  size_t context = 0;             // index into EvalDocument::contexts
  std::string continuation = {};  // with its delimiter; for `generate` empty
  std::vector<std::string> until = {};
  int64_t max_tokens = 0;
};

struct EvalAnswer {
  double log_likelihood = 0;  // nats
  bool greedy = false;        // every token of the continuation is the most likely one
  std::string text = {};      // the generated text before the first stop string
  int64_t tokens_cut = 0;     // from the left of the context, so that the request fits the model's length
};

struct EvalDocument {
  int64_t index = 0;                   // in the evaluated split
  std::string place;                   // in the data, for messages: "<file>:<line>"
  Json source;                         // in the data, as the requests' file names it: {"row": 0}, {"passage": 12705, "query": 19617}, …
  std::vector<int64_t> few_shot = {};  // indices of its examples in the pool, in order
  std::vector<std::string> contexts;   // several requests may share one
  std::vector<EvalRequest> requests;
  Json gold;  // index of the right choice, the expected string, or a list of strings; null for rolling
  // Values that the metrics need beside the answers. A document with a rolling request has "page" (the text before detokenisation),
  // "words" and "bytes".
  Json fields;
};

struct EvalFigure {
  double value = 0;
  std::optional<double> standard_error;  // none where lm-eval gives "N/A"
};

struct EvalFigures {
  std::map<std::string, EvalFigure> metrics;  // those that lm-eval lists for the task, by its names
  std::map<std::string, EvalFigure> further;  // others, such as acc_bytes and exact_match
};

struct EvalTaskOptions {
  std::string data;                      // folder of the unpacked data sets
  int64_t shots = 0;                     // examples in each context
  int64_t seed = 1234;                   // seeds the draws of these examples
  const Tokenizer* tokenizer = nullptr;  // the model's; never null. For tasks that cut their documents to a number of tokens
  // squad_completion: a file of JSON lines with its statements, {"id", "statement", "value"}, or of requests, whose contexts have them
  // (`--dump-requests`, requests.jsonl). Empty: squad-v1.1/statements.jsonl in `data`.
  std::string statements = {};
};

// A task whose data has been read.
class EvalTask {
 public:
  virtual ~EvalTask() = default;
  virtual int64_t size() const = 0;  // documents in the evaluated split
  // The document of this index, which must exist; documents() sets its `index`. Its few-shot examples are drawn as if all documents before
  // it had been made.
  virtual EvalDocument document(int64_t index) const = 0;
  std::vector<EvalDocument> documents(int64_t first, int64_t count) const;  // documents first … first + count − 1, which must exist
  // The document's metrics by lm-eval's names: numbers, or the lists that the aggregate needs; further metrics are in an object "further".
  // One answer for each request.
  virtual Json measure(const EvalDocument& document, std::span<const EvalAnswer> answers) const = 0;
  // measured[i]: the result of measure() for documents[i]. There is at least one document.
  virtual EvalFigures aggregate(std::span<const EvalDocument> documents, std::span<const Json> measured) const = 0;
};

// Whether a metric is a perplexity or bits_per_byte, of which smaller values are better.
bool is_perplexity(const std::string& metric);

// The note on figures of tasks that are not `comparable`.
inline constexpr const char* kNotComparable = "not the published documents or examples: not comparable with published figures";

struct EvalTaskKind {
  std::string name;
  std::string summary;             // the question and the data
  std::string headline;            // the metric of the paper's tables: "acc", "acc_norm", …
  double chance = 0;               // the headline's value for a model that guesses; 0: none
  bool few_shot = false;           // --shots above 0 is possible
  bool comparable = true;          // false: the documents are not the published ones, so figures are not comparable with published ones
  bool published_examples = true;  // false: the same of figures with examples, which are not from the published training split
  std::string version = {};        // the version of lm-eval's task: "1.0"
  // Reads the data. Throws Error naming file, line and field. `options.shots` is 0 unless few_shot.
  std::function<std::unique_ptr<EvalTask>(const EvalTaskOptions& options)> make;
};

#define BASED_EVAL_TASK(name) EvalTaskKind eval_task_##name();
#include "based/eval/tasks.def"
#undef BASED_EVAL_TASK

const std::vector<EvalTaskKind>& eval_task_kinds();  // in the order of tasks.def
bool is_custom_task(const std::string& name);        // the path of a user's own task: it ends in ".toml"
// A task by its name, or a user's own by the path of its file, which ends in ".toml". Throws UsageError listing the known tasks.
EvalTaskKind find_eval_task(const std::string& name);

}  // namespace based
