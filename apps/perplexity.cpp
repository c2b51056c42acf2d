#include "based/eval/perplexity.h"
#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/generate/text_model.h"
#include "based/generate/text_stream.h"
#include "based/models/tensor_view.h"

#include <cmath>

namespace based::apps {
namespace {

// What the WikiText tables count: words between spaces, and the end of each line as one more.
int64_t count_words(const std::string& text) {
  int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    words += (inside && space) + (c == '\n');
    inside = !space;
  }
  return words + inside;
}

struct Options {
  std::string model, data, dtype;
  PerplexityOptions perplexity;
  bool json = false;
};

void run(const Options& options) {
  if (options.perplexity.context < 0 || options.perplexity.context == 1) throw UsageError("--context must be 0, or at least 2 tokens");
  const auto dtype = options.dtype.empty() ? std::nullopt : std::optional(parse_float_type(options.dtype, "--dtype"));
  const TextModel loaded = load_text_model(options.model, dtype);
  const std::string text = read_file(options.data);
  const std::vector<int64_t> ids = encode_ids(*loaded.tokenizer, text);
  if (ids.size() < 2) throw Error(options.data + ": needs at least two tokens, has " + std::to_string(ids.size()));

  const InterruptScope interrupts;
  Progress progress("perplexity", static_cast<int64_t>(ids.size()));
  PerplexityOptions perplexity = options.perplexity;
  perplexity.model = options.model;
  const Perplexity result = measure_perplexity(*loaded.model, ids, perplexity, [&](int64_t done) {
    progress.update(done);
    return !interrupted();
  });
  progress.finish();
  const bool whole = !interrupted();
  const double bytes = static_cast<double>(text.size());
  const int64_t words = count_words(text);
  const double word_perplexity = std::exp(result.nats / static_cast<double>(std::max<int64_t>(words, 1)));
  if (options.json) {
    Json json{{"perplexity", result.value()},
              {"tokens", result.tokens},
              {"nats_per_token", result.nats / static_cast<double>(std::max<int64_t>(result.tokens, 1))},
              {"bytes", text.size()},
              {"complete", whole}};
    if (whole) {
      json["bits_per_byte"] = result.nats / std::log(2.0) / bytes;
      json["words"] = words;
      json["word_perplexity"] = word_perplexity;
    }
    print_line(dump_json(json));
  } else {
    print_line("perplexity " + format_number(result.value(), 3) + " over " + grouped(result.tokens) + " tokens" +
               (whole ? ", " + format_number(result.nats / std::log(2.0) / bytes, 3) + " bits a byte; " +
                            format_number(word_perplexity, 2) + " a word, over " + grouped(words) + " words and line ends"
                      : ""));
  }
  if (!whole) {
    print_message("interrupted; the figure is of the text up to there");
    throw Exit{1};
  }
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder");
  app.add_required("--data", options->data, "text file");
  app.add_option("--context", options->perplexity.context, "forget everything after this many tokens; 0: one state over the whole text");
  app.add_option("--dtype", options->dtype, "fp32, bf16 or fp64 (default: as stored)");
  app.add_flag("--json", options->json, "for machines");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_perplexity{"perplexity", "How well a model predicts a text file", setup};

}  // namespace based::apps
