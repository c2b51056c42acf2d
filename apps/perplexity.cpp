#include "based/eval/perplexity.h"
#include "apps/command.h"
#include "apps/place.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/core/text_table.h"
#include "based/data/dna.h"
#include "based/data/documents.h"
#include "based/eval/slices.h"
#include "based/generate/text_model.h"
#include "based/generate/text_stream.h"
#include "based/models/limits.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>

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

struct Options {
  std::string model, data, dtype, device = "cpu", format = "auto", per_token;
  std::vector<std::string> slices;  // folders of training shards; empty: no slices
  std::vector<int64_t> thresholds;  // empty: kSliceThreshold
  PerplexityOptions perplexity;
  bool documents = false, json = false;
};

using ScoreSink = std::function<void(int64_t row, const ScoredTokens&)>;  // row: the number of predicted tokens before the first of these

// The text to score.
class Text {
 public:
  virtual ~Text() = default;
  virtual void collect(Slices& slices) const = 0;
  // As measure_perplexity and measure_windows.
  virtual Perplexity measure(LanguageModel& model, const std::function<bool(int64_t)>& progress, const ScoreSink& sink) const = 0;
  virtual Json description() const = 0;  // fields of the command's JSON

  // `predicted`: tokens; `bytes`: theirs, without special tokens in packed text; `words`: only known for text.
  int64_t predicted = 0, bytes = 0;
  std::optional<int64_t> words;
  std::vector<std::string> sources;  // each document's source, "" for none; empty if no document has one
};

std::string too_short_message(const std::vector<std::string>& places) {
  constexpr size_t most = 8;
  std::string message = grouped(static_cast<int64_t>(places.size())) + (places.size() == 1 ? " document has" : " documents have") +
                        " fewer than two tokens, which leaves nothing to predict, and " + (places.size() == 1 ? "is" : "are") +
                        " not counted: ";
  for (size_t i = 0; i < std::min(places.size(), most); ++i) message += (i > 0 ? ", " : "") + places[i];
  return places.size() > most ? message + ", …" : message;
}

TextFormat format_option(const Options& options) {
  return options.format == "auto" ? TextFormat::by_name_or_text : text_format(options.format);
}

// Documents of a file, which are scored independently. Documents with fewer than two tokens predict nothing and are left out.
class DocumentText final : public Text {
 public:
  DocumentText(const Options& options, const TextModel& loaded) : options_(options.perplexity) {
    options_.model = options.model;
    if (is_dna_tokenizer(*loaded.tokenizer))
      options_.unlabelled = kDnaPad;
    else
      words = 0;
    std::vector<std::string> too_short;  // file and line of each document that was left out
    read_blocks(options.data, format_option(options), [&](DocumentBlock&& block) {
      parse_block(block, [&](const Document& document) {
        if (!add(document, *loaded.tokenizer))
          too_short.push_back(options.data + (document.line > 0 ? ":" + std::to_string(document.line) : ""));
      });
    });
    if (predicted == 0) throw Error(options.data + ": needs a document of at least two tokens");
    if (!too_short.empty()) print_message(too_short_message(too_short));
    if (gap_tokens_ > 0) print_message(grouped(gap_tokens_) + " letters N are read as [PAD], as in training, and not predicted");
    too_short_ = too_short.size();
    if (std::all_of(sources.begin(), sources.end(), [](const std::string& source) { return source.empty(); })) sources.clear();
    for (const auto& document : documents_) {
      const auto size = static_cast<int64_t>(document.size());
      require_positions(loaded.model->config(), options_.context > 0 ? std::min(options_.context, size) : size,
                        options_.model + ": a context");
    }
  }

  void collect(Slices& slices) const override {
    for_each_context(documents_, options_.context,
                     [&](const DocumentContext& context) { slices.collect(Pairs(context, options_.unlabelled).view()); });
  }

  Perplexity measure(LanguageModel& model, const std::function<bool(int64_t)>& progress, const ScoreSink& sink) const override {
    return measure_perplexity(model, documents_, options_, progress, [&](const DocumentContext& context, std::span<const float> nats) {
      const Pairs pairs(context, nats.size(), options_.unlabelled);
      const std::vector<int32_t> documents(nats.size(), static_cast<int32_t>(context.document));
      sink(first_row(context), {pairs.view(), nats, documents});
    });
  }

  Json description() const override {
    Json json{{"documents", documents_.size()}, {"documents_too_short", too_short_}};
    if (options_.unlabelled >= 0) json["gap_tokens"] = gap_tokens_;
    return json;
  }

 private:
  // False for a document that predicts nothing.
  bool add(const Document& document, const Tokenizer& tokenizer) {
    std::vector<int64_t> ids = encode_ids(tokenizer, document.text);
    if (ids.size() < 2) return false;
    const std::array<int32_t, 1> first{static_cast<int32_t>(ids.front())};  // is not predicted
    std::string_view text = document.text;
    text.remove_prefix(std::min(tokenizer.decode(first).size(), text.size()));
    std::vector<int64_t>& gaps = gaps_.emplace_back();
    if (options_.unlabelled >= 0) {
      std::replace(ids.begin(), ids.end(), int64_t{kDnaN}, int64_t{kDnaPad});
      for (size_t i = 1; i < ids.size(); ++i)
        if (ids[i] == options_.unlabelled) gaps.push_back(static_cast<int64_t>(i));
    }
    if (words) *words += count_words(text);
    bytes += static_cast<int64_t>(text.size()) - std::ssize(gaps);  // a gap is one letter
    first_rows_.push_back(predicted);
    predicted += std::ssize(ids) - 1 - std::ssize(gaps);
    gap_tokens_ += std::ssize(gaps);
    documents_.push_back(std::move(ids));
    sources.emplace_back(document.source);
    return true;
  }

  // The number of predicted tokens before those of the context.
  int64_t first_row(const DocumentContext& context) const {
    const auto document = static_cast<size_t>(context.document);
    const std::vector<int64_t>& gaps = gaps_[document];
    return first_rows_[document] + context.first - (std::upper_bound(gaps.begin(), gaps.end(), context.first) - gaps.begin());
  }

  // The pairs of the context's first `count` tokens after the first.
  struct Pairs {
    Pairs(const DocumentContext& context, int64_t unlabelled) : Pairs(context, context.ids.size() - 1, unlabelled) {}
    Pairs(const DocumentContext& context, size_t count, int64_t unlabelled)
        : inputs(context.ids.begin(), context.ids.begin() + static_cast<int64_t>(count)),
          targets(context.ids.begin() + 1, context.ids.begin() + 1 + static_cast<int64_t>(count)) {
      std::replace(targets.begin(), targets.end(), static_cast<int32_t>(unlabelled), kNoLabel);
    }
    TokenPairs view() const { return {inputs, targets, {}}; }
    std::vector<int32_t> inputs, targets;
  };

  PerplexityOptions options_;
  std::vector<std::vector<int64_t>> documents_;
  std::vector<int64_t> first_rows_;         // [documents]: predicted tokens of the documents before
  std::vector<std::vector<int64_t>> gaps_;  // [documents]: places of unlabelled tokens, from 1 on, in order
  int64_t gap_tokens_ = 0;
  size_t too_short_ = 0;
};

bool is_packed(const std::string& path) { return is_folder(path) || path.ends_with(".tokens"); }

std::shared_ptr<const TokenDataset> open_packed(const std::string& path, const Tokenizer& tokenizer) {
  auto data = std::make_shared<const TokenDataset>(path);
  data->require_tokenizer(tokenizer);
  return data;
}

// Token shards, which are scored in windows as in training.
class PackedText final : public Text {
 public:
  PackedText(const Options& options, const TextModel& loaded)
      : data_(open_packed(options.data, *loaded.tokenizer)),
        options_{.length = options.perplexity.context,
                 .batch = options.perplexity.batch,
                 .documents = options.documents,
                 .padded_columns = options.perplexity.padded_columns,
                 .model = options.model},
        device_(loaded.model->device()) {
    require_positions(loaded.model->config(), options_.length, options_.model + ": a window");
    const Tokenizer& tokenizer = *loaded.tokenizer;
    for_each_window_batch(data_, options_, device_, [&](const TokenBatch& batch) {
      for (const int32_t target : batch.targets) {
        if (target < 0) continue;
        ++predicted;
        if (!tokenizer.is_special(target)) bytes += static_cast<int64_t>(tokenizer.token_bytes(target).size());
      }
      return true;
    });
    if (data_->source_names().empty()) return;
    for (int64_t document = 0; document < data_->documents(); ++document) {
      const int64_t source = data_->document_source(document);
      sources.push_back(source < 0 ? "" : data_->source_names().at(static_cast<size_t>(source)));
    }
  }

  void collect(Slices& slices) const override {
    for_each_window_batch(data_, options_, device_, [&](const TokenBatch& batch) {
      slices.collect(token_pairs(batch));
      return true;
    });
  }

  Perplexity measure(LanguageModel& model, const std::function<bool(int64_t)>& progress, const ScoreSink& sink) const override {
    int64_t row = 0;
    return measure_windows(model, data_, options_, progress, [&](const TokenBatch& batch, std::span<const float> nats) {
      const std::vector<int32_t> documents = target_documents(batch);
      sink(row, {token_pairs(batch), nats, documents});
      row += std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t target) { return target >= 0; });
    });
  }

  Json description() const override {
    const int64_t windows = (data_->tokens() - 1) / options_.length;
    return {{"documents", data_->documents()},
            {"windows", windows},
            {"window_tokens", options_.length},
            {"tokens_left_out", data_->tokens() - 1 - windows * options_.length}};
  }

 private:
  std::vector<int32_t> target_documents(const TokenBatch& batch) const {
    std::vector<int32_t> documents;
    std::vector<int64_t> starts;
    for (const int64_t window : batch.windows) {
      const int64_t first = window * batch.length + 1;  // the position of the window's first target
      starts.clear();
      data_->append_document_starts(first, first + batch.length, starts);
      auto document = static_cast<int32_t>(data_->document_at(first - 1));
      auto start = starts.begin();
      for (int64_t position = first; position < first + batch.length; ++position) {
        if (start != starts.end() && *start == position) ++document, ++start;
        documents.push_back(document);
      }
    }
    return documents;
  }

  std::shared_ptr<const TokenDataset> data_;
  WindowOptions options_;
  torch::Device device_;
};

void check_options(const Options& options) {
  const int64_t context = options.perplexity.context;
  if (context < 0 || context == 1) throw UsageError("--context must be 0, or at least 2 tokens");
  const bool packed = is_packed(options.data);
  if (packed && context == 0)
    throw UsageError("--context must give the length of a window of " + options.data + ", as in training: 2048, for example");
  if (packed && options.format != "auto") throw UsageError("--format is for text; " + options.data + " is packed");
  format_option(options);
  if (!packed && options.documents) throw UsageError("--documents is for packed data; documents of text are independent in any case");
  if (options.slices.empty() && !options.thresholds.empty()) throw UsageError("--threshold needs --slices, the training tokens");
  for (const int64_t threshold : options.thresholds)
    if (threshold < 0) throw UsageError("--threshold must be at least 0, got " + std::to_string(threshold));
  for (const std::string& path : options.slices)
    if (!is_packed(path)) throw UsageError("--slices " + path + ": needs the folder of the training shards (`based data pack`)");
  const std::string twice = named_twice(options.slices);
  if (!twice.empty()) throw UsageError("--slices names " + twice + " twice: its pairs would count double");
  if (options.per_token.empty()) return;
  if (!options.per_token.ends_with(".safetensors"))
    throw UsageError("--per-token " + options.per_token + ": the file is of safetensors, so its name must end in .safetensors");
  check_writable(options.per_token);
}

// The training counts of the text's pairs.
Slices count_pairs(const Options& options, const Text& text, const Tokenizer& tokenizer) {
  std::vector<std::shared_ptr<const TokenDataset>> sets;
  int64_t tokens = 0;
  for (const std::string& path : options.slices) {
    sets.push_back(open_packed(path, tokenizer));
    tokens += sets.back()->tokens();
  }
  Slices slices;
  text.collect(slices);
  Progress progress("training tokens", tokens, {.delay = kProgressDelay});
  int64_t before = 0;
  for (const auto& set : sets) {
    const bool whole = slices.count(*set, [&](int64_t done) {
      progress.update(before + done);
      return !interrupted();
    });
    if (!whole) throw Error("interrupted while the training tokens were counted");
    before += set->tokens();
  }
  return slices;
}

Json slices_json(const std::vector<SliceFigures>& figures) {
  Json list = Json::array();
  for (const SliceFigures& each : figures) list.push_back(slice_json(each));
  return list;
}

std::string perplexity_text(const SliceSum& sum) {
  const std::optional<double> value = sum.perplexity();
  return value ? format_number(*value, 3) : "-";
}

void print_slices(const ScoreSums& sums, int64_t training_tokens) {
  for (const SliceFigures& figures : sums.figures()) {
    print_line("AR: pairs that occurred earlier in the context and at most " + grouped(figures.threshold) + " times in " +
               grouped(training_tokens) + " training tokens");
    std::vector<std::vector<std::string>> rows{{"", "tokens", "share", "perplexity"}};
    const std::pair<const char*, const SliceSum*> slices[]{{"All", &figures.all}, {"AR", &figures.ar}, {"Other", &figures.other}};
    for (const auto& [name, sum] : slices) {
      const double share = static_cast<double>(sum->tokens) / static_cast<double>(std::max<int64_t>(figures.all.tokens, 1));
      rows.push_back({name, grouped(sum->tokens), format_number(100 * share, 2) + " %", perplexity_text(*sum)});
    }
    for (const std::string& line : aligned_columns(rows)) print_line(line);
  }
}

// A row for each source; the slices are those of the first threshold.
void print_sources(const ScoreSums& sums, bool slices) {
  std::vector<std::vector<std::string>> rows{{"source", "tokens", slices ? "All" : "perplexity"}};
  if (slices) rows.front().insert(rows.front().end(), {"AR", "Other", "AR share"});
  for (const auto& [name, thresholds] : sums.sources()) {
    const SliceFigures& figures = thresholds.front();
    rows.push_back({name.empty() ? "(none)" : name, grouped(figures.all.tokens), perplexity_text(figures.all)});
    if (slices)
      rows.back().insert(rows.back().end(), {perplexity_text(figures.ar), perplexity_text(figures.other),
                                             format_number(100 * figures.ar_share().value_or(0), 2) + " %"});
  }
  if (slices && !sums.sources().empty())
    print_line("By source; AR and Other by the threshold " + grouped(sums.sources().begin()->second.front().threshold));
  for (const std::string& line : aligned_columns(rows)) print_line(line);
}

struct Measured {
  Perplexity sum;
  double seconds = 0;
  bool whole = true;  // false: interrupted
};

void print_json(const Measured& measured, const Text& text, const ScoreSums& sums, const Slices* slices) {
  const Perplexity& sum = measured.sum;
  Json json{{"perplexity", sum.value()},
            {"tokens", sum.tokens},
            {"nats_per_token", sum.nats / static_cast<double>(std::max<int64_t>(sum.tokens, 1))}};
  json.update(text.description());
  json["bytes"] = text.bytes;
  json["tokens_per_second"] = static_cast<double>(sum.tokens) / measured.seconds;
  json["complete"] = measured.whole;
  if (measured.whole) json["bits_per_byte"] = sum.nats / std::log(2.0) / static_cast<double>(text.bytes);
  if (measured.whole && text.words) {
    json["words"] = *text.words;
    json["word_perplexity"] = std::exp(sum.nats / static_cast<double>(std::max<int64_t>(*text.words, 1)));
  }
  if (slices != nullptr) {
    json["training_tokens"] = slices->training_tokens();
    json["slices"] = slices_json(sums.figures());
  }
  for (const auto& [name, figures] : sums.sources()) {
    json["sources"][name] = sum_json(figures.front().all);
    if (slices != nullptr) json["sources"][name]["slices"] = slices_json(figures);
  }
  print_line(dump_json(json));
}

void print_text_result(const Measured& measured, const Text& text, const ScoreSums& sums, const Slices* slices) {
  const Perplexity& sum = measured.sum;
  std::string line = "perplexity " + format_number(sum.value(), 3) + " over " + grouped(sum.tokens) + " tokens";
  if (measured.whole) line += ", " + format_number(sum.nats / std::log(2.0) / static_cast<double>(text.bytes), 3) + " bits a byte";
  if (measured.whole && text.words) {
    const double words = static_cast<double>(std::max<int64_t>(*text.words, 1));
    line += "; " + format_number(std::exp(sum.nats / words), 2) + " a word, over " + grouped(*text.words) + " words and line ends";
  }
  print_line(line);
  if (slices != nullptr) print_slices(sums, slices->training_tokens());
  if (!sums.sources().empty()) print_sources(sums, slices != nullptr);
}

void run(const Options& options) {
  check_options(options);
  const Place place = parse_place(options.device, options.dtype);
  const TextModel loaded = load_text_model(options.model, place.dtype, place.device);
  std::unique_ptr<Text> text;
  if (is_packed(options.data))
    text = std::make_unique<PackedText>(options, loaded);
  else
    text = std::make_unique<DocumentText>(options, loaded);

  const InterruptScope interrupts;
  std::optional<Slices> counted;
  if (!options.slices.empty()) counted = count_pairs(options, *text, *loaded.tokenizer);
  const Slices* slices = counted ? &*counted : nullptr;
  const std::vector<int64_t> thresholds = options.thresholds.empty() ? std::vector{kSliceThreshold} : options.thresholds;
  ScoreSums sums(slices, thresholds, text->sources);
  std::optional<TokenTable> table;
  if (!options.per_token.empty()) table.emplace(text->predicted, slices != nullptr);

  Progress progress("perplexity", text->predicted);
  const auto start = std::chrono::steady_clock::now();
  const auto proceed = [&](int64_t done) {
    progress.update(done);
    return !interrupted();
  };
  Measured measured;
  measured.sum = text->measure(*loaded.model, proceed, [&](int64_t row, const ScoredTokens& tokens) {
    const std::vector<int64_t> counts = sums.add(tokens);
    if (table) table->set(row, tokens, counts);
  });
  measured.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.finish();
  measured.whole = !interrupted();
  if (table && measured.whole) table->write(options.per_token, thresholds.front());
  (options.json ? print_json : print_text_result)(measured, *text, sums, slices);
  if (!measured.whole) {
    print_message("interrupted; the result covers the text read so far" + (table ? ", and " + options.per_token + " is not written" : ""));
    throw Exit{1};
  }
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("--model", options->model, "the model's folder");
  app.add_required(
      "--data", options->data,
      "file of text, JSON lines or FASTA, also .zst: documents are scored independently; or a folder of token shards, scored in "
      "windows as in training");
  app.add_option(
      "--context", options->perplexity.context,
      "split documents into independent contexts of this many tokens; each starts with the last token of the previous one, so "
      "that every token but a document's first is predicted once; 0: one context per document. For token shards: the inputs of a "
      "window, each of which predicts the next token");
  app.add_option("--format", options->format, "format of the data: text (one document), jsonl, fasta, or auto (by its name, else text)");
  app.add_option("--batch", options->perplexity.batch,
                 "contexts that are scored at the same time; affects only the speed; 0: 8 on the CPU, 64 on a GPU; "
                 "for windows of shards as many as have 4,096 tokens, 32,768 on a GPU",
                 {0, 1 << 20});
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_option("--dtype", options->dtype, kDtypeHelp);
  app.add_flag("--padded-columns", options->perplexity.padded_columns,
               "include the embedding's padding rows in the softmax, as published harnesses do (default: only the tokenizer's tokens)");
  app.add_option(
      "--slices", options->slices,
      "folder of the model's training shards; may be repeated: also report the perplexity of AR tokens, whose pair with "
      "the token before occurred earlier in the context and at most --threshold times in the training tokens, and of all others");
  app.add_option("--threshold", options->thresholds, "most occurrences in training of an AR token's pair (default: 1250); may be repeated");
  app.add_flag(
      "--documents", options->documents,
      "for token shards: contexts end with their document, as with data.documents = true in training (default: windows of any documents)");
  app.add_option(
      "--per-token", options->per_token,
      "write each predicted token to this file of safetensors, whose name must end in .safetensors, since several tensors are in "
      "it: id, nats, document, and with --slices slice (1: AR, by the first --threshold) and training_count",
      kPath);
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--format", {"auto", "text", "jsonl", "fasta"});
  app.callback([options] { run(*options); });
}

}  // namespace perplexity_command

const Command command_perplexity{"perplexity", "Measure a model's perplexity on text or token shards, also by slices",
                                 perplexity_command::setup};

}  // namespace based::apps
