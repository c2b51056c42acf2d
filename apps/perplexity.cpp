#include "based/eval/perplexity.h"
#include "apps/command.h"
#include "apps/place.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/data/documents.h"
#include "based/generate/text_model.h"
#include "based/generate/text_stream.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace based::apps {
namespace {

// What the WikiText tables count: words between spaces, and the end of each line as one more.
int64_t count_words(std::string_view text) {
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
  std::string model, data, dtype, device = "cpu", format = "text";
  PerplexityOptions perplexity;
  bool json = false;
};

void run(const Options& options) {
  if (options.perplexity.context < 0 || options.perplexity.context == 1) throw UsageError("--context must be 0, or at least 2 tokens");
  const TextFormat format = text_format(options.format);
  const Place place = parse_place(options.device, options.dtype);
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  std::vector<std::vector<int64_t>> documents;
  int64_t tokens = 0, words = 0, bytes = 0;
  read_documents(options.data, format, [&](std::string_view text) {
    documents.push_back(encode_ids(*loaded.tokenizer, text));
    tokens += static_cast<int64_t>(documents.back().size());
    words += count_words(text), bytes += static_cast<int64_t>(text.size());
  });
  if (std::all_of(documents.begin(), documents.end(), [](const auto& ids) { return ids.size() < 2; }))
    throw Error(options.data + ": needs a document of at least two tokens, has " + std::to_string(tokens) + " tokens in all");

  const InterruptScope interrupts;
  Progress progress("perplexity", tokens);
  const auto start = std::chrono::steady_clock::now();
  PerplexityOptions perplexity = options.perplexity;
  perplexity.model = options.model;
  const Perplexity result = measure_perplexity(*loaded.model, documents, perplexity, [&](int64_t done) {
    progress.update(done);
    return !interrupted();
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.finish();
  const bool whole = !interrupted();
  const double word_perplexity = std::exp(result.nats / static_cast<double>(std::max<int64_t>(words, 1)));
  if (options.json) {
    Json json{{"perplexity", result.value()},
              {"tokens", result.tokens},
              {"nats_per_token", result.nats / static_cast<double>(std::max<int64_t>(result.tokens, 1))},
              {"documents", documents.size()},
              {"bytes", bytes},
              {"tokens_per_second", static_cast<double>(result.tokens) / seconds},
              {"complete", whole}};
    if (whole) {
      json["bits_per_byte"] = result.nats / std::log(2.0) / static_cast<double>(bytes);
      json["words"] = words;
      json["word_perplexity"] = word_perplexity;
    }
    print_line(dump_json(json));
  } else {
    print_line("perplexity " + format_number(result.value(), 3) + " over " + grouped(result.tokens) + " tokens" +
               (whole ? ", " + format_number(result.nats / std::log(2.0) / static_cast<double>(bytes), 3) + " bits a byte; " +
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
  app.add_required("--data", options->data, "file of text; documents are read apart");
  app.add_option("--context", options->perplexity.context, "forget everything after this many tokens; 0: one state over the whole text");
  app.add_option("--format", options->format, "of the data: text (one document), jsonl, fasta, or auto (by its name)");
  app.add_option("--batch", options->perplexity.batch,
                 "documents, or contexts of one, that are read side by side: faster, the same figure; 0: 8 on the CPU, 64 on a GPU",
                 {0, 1 << 20});
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_option("--dtype", options->dtype, "fp32, bf16 or fp64 (default: as stored)");
  app.add_flag("--json", options->json, "for machines");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_perplexity{"perplexity", "How well a model predicts a text file", setup};

}  // namespace based::apps
