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
#include <array>
#include <chrono>
#include <cmath>

namespace based::apps {
namespace perplexity_command {

// Counts words as the published WikiText perplexities do: words between spaces, and each end of a line as one word.
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

// The documents to score. Documents with fewer than two tokens predict nothing and are left out.
struct Documents {
  std::vector<std::vector<int64_t>> ids;
  int64_t predicted = 0, words = 0, bytes = 0;  // without each document's first token, which is not predicted
  std::vector<std::string> too_short;           // file and line of each document that was left out
};

Documents read(const std::string& path, TextFormat format, const Tokenizer& tokenizer) {
  Documents documents;
  read_named_documents(path, format, [&](std::string_view text, const std::string& place) {
    std::vector<int64_t> ids = encode_ids(tokenizer, text);
    if (ids.size() < 2) return documents.too_short.push_back(place);
    documents.predicted += static_cast<int64_t>(ids.size()) - 1;
    const std::array<int32_t, 1> first{static_cast<int32_t>(ids.front())};
    text.remove_prefix(std::min(tokenizer.decode(first).size(), text.size()));
    documents.words += count_words(text), documents.bytes += static_cast<int64_t>(text.size());
    documents.ids.push_back(std::move(ids));
  });
  return documents;
}

std::string too_short_message(const std::vector<std::string>& places) {
  constexpr size_t most = 8;
  std::string message = grouped(static_cast<int64_t>(places.size())) + (places.size() == 1 ? " document has" : " documents have") +
                        " fewer than two tokens, which leaves nothing to predict, and " + (places.size() == 1 ? "is" : "are") +
                        " not counted: ";
  for (size_t i = 0; i < std::min(places.size(), most); ++i) message += (i > 0 ? ", " : "") + places[i];
  return places.size() > most ? message + ", …" : message;
}

struct Options {
  std::string model, data, dtype, device = "cpu", format = "auto";
  PerplexityOptions perplexity;
  bool json = false;
};

void run(const Options& options) {
  if (options.perplexity.context < 0 || options.perplexity.context == 1) throw UsageError("--context must be 0, or at least 2 tokens");
  const Place place = parse_place(options.device, options.dtype);
  const TextFormat format = options.format == "auto" ? TextFormat::by_name_or_text : text_format(options.format);
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  const Documents documents = read(options.data, format, *loaded.tokenizer);
  if (documents.ids.empty()) throw Error(options.data + ": needs a document of at least two tokens");
  if (!documents.too_short.empty()) print_message(too_short_message(documents.too_short));

  const InterruptScope interrupts;
  Progress progress("perplexity", documents.predicted);
  const auto start = std::chrono::steady_clock::now();
  PerplexityOptions perplexity = options.perplexity;
  perplexity.model = options.model;
  const Perplexity result = measure_perplexity(*loaded.model, documents.ids, perplexity, [&](int64_t done) {
    progress.update(done);
    return !interrupted();
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.finish();
  const bool whole = !interrupted();
  const double word_perplexity = std::exp(result.nats / static_cast<double>(std::max<int64_t>(documents.words, 1)));
  if (options.json) {
    Json json{{"perplexity", result.value()},
              {"tokens", result.tokens},
              {"nats_per_token", result.nats / static_cast<double>(std::max<int64_t>(result.tokens, 1))},
              {"documents", documents.ids.size()},
              {"documents_too_short", documents.too_short.size()},
              {"bytes", documents.bytes},
              {"tokens_per_second", static_cast<double>(result.tokens) / seconds},
              {"complete", whole}};
    if (whole) {
      json["bits_per_byte"] = result.nats / std::log(2.0) / static_cast<double>(documents.bytes);
      json["words"] = documents.words;
      json["word_perplexity"] = word_perplexity;
    }
    print_line(dump_json(json));
  } else {
    print_line("perplexity " + format_number(result.value(), 3) + " over " + grouped(result.tokens) + " tokens" +
               (whole ? ", " + format_number(result.nats / std::log(2.0) / static_cast<double>(documents.bytes), 3) + " bits a byte; " +
                            format_number(word_perplexity, 2) + " a word, over " + grouped(documents.words) + " words and line ends"
                      : ""));
  }
  if (!whole) {
    print_message("interrupted; the result covers the text read so far");
    throw Exit{1};
  }
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder");
  app.add_required("--data", options->data, "file of text, JSON lines or FASTA, also .zst; documents are scored independently");
  app.add_option("--context", options->perplexity.context,
                 "split documents into independent contexts of this many tokens; each starts with the last token of the previous one, so "
                 "that every token but a document's first is predicted once; 0: one context per document");
  app.add_option("--format", options->format, "format of the data: text (one document), jsonl, fasta, or auto (by its name, else text)");
  app.add_option("--batch", options->perplexity.batch,
                 "contexts that are scored at the same time; affects only the speed; 0: 8 on the CPU, 64 on a GPU", {0, 1 << 20});
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_option("--dtype", options->dtype, "fp32, bf16 or fp64 (default: as stored)");
  app.add_flag("--padded-columns", options->perplexity.padded_columns,
               "include the embedding's padding rows in the softmax, as published harnesses do (default: only the tokenizer's tokens)");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { run(*options); });
}

}  // namespace perplexity_command

const Command command_perplexity{"perplexity", "Measure a model's perplexity on a text file", perplexity_command::setup};

}  // namespace based::apps
