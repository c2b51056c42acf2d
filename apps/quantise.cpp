#include "apps/quantise.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/output_folder.h"
#include "based/core/progress.h"
#include "based/data/documents.h"
#include "based/data/tokenizer.h"
#include "based/eval/perplexity.h"
#include "based/experiments/recall_eval.h"
#include "based/generate/text_stream.h"
#include "based/models/quantised.h"
#include "based/models/weights.h"

namespace based::apps {
namespace quantise_weights {

constexpr int64_t kContext = 1024;        // tokens per context of the gate's text
constexpr double kMostRecallLost = 0.01;  // absolute

// The largest relative increase of the perplexity.
double most_increase(ops::WeightForm form) { return form == ops::WeightForm::int8 ? 0.005 : 0.03; }

using GateDocuments = std::vector<std::vector<int64_t>>;

// Documents of at least two tokens; empty without --gate-text.
GateDocuments read_gate_text(const std::string& path, const Tokenizer* tokenizer) {
  GateDocuments documents;
  if (path.empty()) return documents;
  if (tokenizer == nullptr) throw UsageError("--gate-text needs a tokenizer in the model's folder");
  read_documents(path, TextFormat::by_name_or_text, [&](std::string_view text) {
    std::vector<int64_t> ids = encode_ids(*tokenizer, text);
    if (ids.size() >= 2) documents.push_back(std::move(ids));
  });
  if (documents.empty()) throw Error(path + ": needs a document of at least two tokens");
  return documents;
}

// Both models are compared in this type: that of the full one, or the nearest type of quantised weights.
torch::Dtype gate_type(torch::Dtype stored) { return run_type(stored) == torch::kBFloat16 ? torch::kBFloat16 : torch::kFloat; }

struct Quality {
  std::optional<double> perplexity, recall;
};

double measure_text(LanguageModel& model, const GateDocuments& documents, const std::string& label) {
  const int64_t positions = model.config().max_positions;
  int64_t tokens = 0;
  for (const auto& document : documents) tokens += static_cast<int64_t>(document.size()) - 1;
  Progress progress("perplexity, " + label, tokens);
  const auto proceed = [&](int64_t done) {
    progress.update(done);
    return !interrupted();
  };
  PerplexityOptions options;
  options.context = positions > 0 ? std::min(positions, kContext) : kContext;
  const Perplexity result = measure_perplexity(model, documents, options, proceed);
  if (interrupted()) throw Error("interrupted while the models were compared; nothing is written");
  return result.value();
}

void check_segment(const RecallSegment& segment, int64_t vocab_size) {
  MqarConfig config;
  config.vocab_size = vocab_size;
  config.length = segment.length;
  config.pairs = segment.pairs;
  config.examples = segment.examples;
  try {
    check_mqar(config);
  } catch (const UsageError& error) {
    throw UsageError(std::string("--gate-length and --gate-pairs: ") + error.what());
  }
}

double measure_mqar(LanguageModel& model, const RecallSegment& segment) {
  RecallTask task;
  task.vocab_size = model.config().vocab_size;
  task.test = {segment};
  const MqarData data = make_recall_segments(task).test.front();
  return measure_recall(model, {RecallData::on_device(data, torch::kCPU)}, 32).mean;
}

Quality measure_quality(const std::string& folder, torch::Dtype type, const GateDocuments& documents, const QuantiseOptions& options,
                        const std::string& label) {
  Quality quality;
  if (documents.empty() && !options.gate_mqar) return quality;
  const LoadedModel loaded = load_model(folder, type);
  if (!documents.empty()) quality.perplexity = measure_text(*loaded.model, documents, label);
  if (options.gate_mqar) quality.recall = measure_mqar(*loaded.model, options.segment);
  return quality;
}

// Prints both and throws Error if the quantised model is too much worse, unless --no-gate is given.
// `values`: the number of tokens among which a model without recall guesses.
void compare_quality(const Quality& full, const Quality& quantised, ops::WeightForm form, int64_t values, const QuantiseOptions& options) {
  const std::string name = weight_form_name(form);
  std::string failed;
  char text[200];
  if (full.perplexity && quantised.perplexity) {
    const double change = *quantised.perplexity / *full.perplexity - 1;
    std::snprintf(text, sizeof text, ": %.4f full, %.4f %s, %+.2f %% (at most +%.1f %%)", *full.perplexity, *quantised.perplexity,
                  name.c_str(), 100 * change, 100 * most_increase(form));
    print_line("perplexity of " + options.gate_text + text);
    if (!(change <= most_increase(form))) failed = "the perplexity rises";
  } else {
    print_line("perplexity: not compared, no --gate-text");
  }
  if (full.recall && quantised.recall) {
    std::snprintf(text, sizeof text, "recall: %.4f full, %.4f %s (at most %.2f less)", *full.recall, *quantised.recall, name.c_str(),
                  kMostRecallLost);
    print_line(text);
    if (*full.recall <= 1 / static_cast<double>(values) + kMostRecallLost)
      log_warning("the full model recalls nothing, as a guess among the " + grouped(values) +
                  " values would: --gate-mqar compared nothing; it is for models of `based experiment` recall");
    if (!(*full.recall - *quantised.recall <= kMostRecallLost)) failed += std::string(failed.empty() ? "" : " and ") + "the recall falls";
  } else {
    print_line("recall: not applicable, no --gate-mqar, which is for models of `based experiment` recall");
  }
  if (!failed.empty() && !options.no_gate)
    throw Error("with " + name + " weights " + failed + " by more than the gate allows; nothing is written (--no-gate writes the model)");
}

}  // namespace quantise_weights

void add_quantise_options(CommandLine app, QuantiseOptions& options) {
  app.add_option("--weights", options.form,
                 "int8 or int4: quantise the linear layers, and the embedding to int8; the source may also be a model's folder. The result "
                 "runs in fp32 or bf16, int4 "
                 "on the CPU only, and cannot be trained");
  app.add_option("--gate-text", options.gate_text,
                 "with --weights: compare the perplexity on this file; above +0.5 % (int8) or +3 % (int4), write nothing", kPath);
  app.add_flag("--gate-mqar", options.gate_mqar,
               "with --weights: compare the recall (`based mqar eval`); if it falls by more than 0.01, write nothing");
  app.add_option("--gate-length", options.segment.length, "with --gate-mqar: tokens per example");
  app.add_option("--gate-pairs", options.segment.pairs, "with --gate-mqar: key-value pairs per example");
  app.add_flag("--no-gate", options.no_gate, "with --weights: write the model without a comparison, or whatever the comparison finds");
  for (const char* option : {"--gate-text", "--gate-mqar", "--no-gate"}) app.needs(option, "--weights");
  for (const char* option : {"--gate-length", "--gate-pairs"}) app.needs(option, "--gate-mqar");
  app.offer("--weights", {"int8", "int4"});
}

void check_quantise_options(const QuantiseOptions& options) {
  if (options.form.empty()) return;
  parse_weight_form(options.form, "--weights");
  if (options.gate_mqar) quantise_weights::check_segment(options.segment, std::numeric_limits<int32_t>::max());
  if (options.gate_text.empty() && !options.gate_mqar && !options.no_gate)
    throw UsageError(
        "--weights needs a comparison with the full model: --gate-text FILE (perplexity) or --gate-mqar (recall); --no-gate writes the "
        "model without one");
}

bool is_own_model(const std::string& folder) {
  const std::string weights = path_in(folder, "model.safetensors");
  if (!path_exists(weights)) return false;
  const SafetensorsFile file(weights);
  return file.find(kEmbeddingName) != nullptr || find_quantised(file, kEmbeddingName);
}

void quantise_folder(const std::string& source, const std::string& out, const QuantiseOptions& options) {
  using namespace quantise_weights;
  const ops::WeightForm form = parse_weight_form(options.form, "--weights");
  std::unique_ptr<Tokenizer> tokenizer;
  if (!held(source, tokenizer_holding()).empty()) tokenizer = make_tokenizer(source);
  const ModelFiles files = read_model_files(source);
  if (options.gate_mqar) check_segment(options.segment, files.config.vocab_size);
  const GateDocuments documents = read_gate_text(options.gate_text, tokenizer.get());
  if (tokenizer != nullptr) tokenizer->save(out);
  const QuantisedFolder made = quantise_model(source, out, form);
  print_line(grouped(made.layers) + " linear layers in " + weight_form_name(form) + ", the embedding in " +
             weight_form_name(kEmbeddingForm) + ": " + format_bytes(static_cast<double>(made.bytes_after)) + " in place of " +
             format_bytes(static_cast<double>(made.bytes_before)));
  if (made.kept > 0)
    log_warning(std::to_string(made.kept) + " linear layers keep their type, since their rows are no multiple of 32 weights");
  const InterruptScope interrupts;
  const torch::Dtype type = gate_type(files.dtype);
  const Quality full = measure_quality(source, type, documents, options, "full");
  const int64_t values = files.config.vocab_size - files.config.vocab_size / 2;  // the upper half of the vocabulary, as in make_mqar
  compare_quality(full, measure_quality(out, type, documents, options, weight_form_name(form)), form, values, options);
}

}  // namespace based::apps
