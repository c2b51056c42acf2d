#include "apps/command.h"
#include "apps/quantise.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/log.h"
#include "based/core/new_folder.h"
#include "based/core/output_folder.h"
#include "based/data/tokenizer.h"
#include "based/models/published/expected.h"
#include "based/models/published/published.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"

namespace based::apps {
namespace convert_command {

struct Options {
  std::string source, out, tokenizer, expect, dtype, format;
  bool back = false;
  QuantiseOptions quantise;
};

PublishedFormat parse_format(const std::string& name) {
  if (name.empty()) return PublishedFormat::as_source;
  if (name == "bin") return PublishedFormat::torch;
  if (name == "safetensors") return PublishedFormat::safetensors;
  throw UsageError("--format must be bin or safetensors, got '" + name + "'");
}

// The tokenizer that --tokenizer names, or the one in the source's folder; null if there is neither.
std::unique_ptr<Tokenizer> find_tokenizer(const Options& options) {
  if (!options.tokenizer.empty()) return make_tokenizer(options.tokenizer);
  if (!held(options.source, tokenizer_holding()).empty()) return make_tokenizer(options.source);
  return nullptr;
}

// Runs the model in `folder` and compares its logits. Throws Error if they differ by more than the tolerance.
void check_expected(const Options& options, const std::string& folder) {
  const SafetensorsFile expected(options.expect);
  const torch::Dtype dtype = options.dtype.empty() ? expected_dtype(expected) : parse_float_type(options.dtype, "--dtype");
  const LogitsDifference result = compare_logits(*load_model(folder, dtype).model, expected);
  char text[160];
  std::snprintf(text, sizeof text, "largest difference of the logits in %s: %.3g of the largest logit (tolerance %.3g)",
                float_type_name(dtype).c_str(), result.largest, result.tolerance);
  print_line(text);
  if (!result.pass) throw Error(options.expect + ": the converted model's logits differ by more than the tolerance");
}

// Fills the new folder from a folder as published.
void convert_published(const Options& options, NewFolder& folder) {
  if (!options.expect.empty()) expected_dtype(SafetensorsFile(options.expect));  // refuses a wrong file before the work
  PublishedModel model(options.source);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options);
  for (const std::string& warning : model.warnings()) log_warning(options.source + ": " + warning);
  if (tokenizer != nullptr && tokenizer->vocab_size() != model.config().vocab_size) {
    const int64_t before = model.config().vocab_size;
    model.fit_vocabulary(tokenizer->vocab_size());
    log_warning(options.source + ": the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " tokens, 'vocab_size' is " +
                std::to_string(before) + "; ids without a token are treated as padding");
  }
  if (model.dtype() == DType::F16)
    log_warning(options.source + ": the weights are fp16 and stay so; run the model with --dtype bf16 or fp32");
  const bool quantises = !options.quantise.form.empty();
  folder.fill([&](const std::string& staging) {
    const std::string full = quantises ? path_in(staging, "full") : staging;  // removed after it is quantised
    make_folder(full);
    std::optional<uint64_t> hash;
    if (tokenizer != nullptr) {
      tokenizer->save(full);
      hash = tokenizer->hash();
    }
    model.save(full, hash);
    if (!options.expect.empty()) check_expected(options, full);
    if (!quantises) return;
    quantise_folder(full, staging, options.quantise);
    remove_tree(full);
  });
  if (quantises) log_info("--back needs the full model: a folder with quantised weights holds no source.safetensors");
  print_line("the model (" + model.family() + ", " + grouped(parameter_count(model.config())) + " parameters) is in " + options.out +
             (model.dropped() == 0 ? "" : "; " + std::to_string(model.dropped()) + " tensors have no part in it and are kept for --back") +
             (tokenizer == nullptr ? "; it has no tokenizer: text needs one, --tokenizer" : ""));
}

// Quantises a model's folder of this library.
void convert_own(const Options& options, NewFolder& folder) {
  if (options.quantise.form.empty())
    throw UsageError(options.source + ": is a model's folder of this library already; --weights int8 or int4 quantises it");
  if (!options.tokenizer.empty() || !options.expect.empty())
    throw UsageError("--tokenizer and --expect are for a folder as published; " + options.source + " is a model's folder of this library");
  folder.fill([&](const std::string& staging) { quantise_folder(options.source, staging, options.quantise); });
  print_line("the model with " + options.quantise.form + " weights is in " + options.out);
}

void convert(const Options& options) {
  NewFolder folder(options.out, "--out");
  if (is_own_model(options.source)) return convert_own(options, folder);
  convert_published(options, folder);
}

void convert_back(const Options& options) {
  if (!options.tokenizer.empty() || !options.expect.empty() || !options.dtype.empty())
    throw UsageError("--tokenizer, --expect and --dtype have no meaning with --back");
  const PublishedFormat format = parse_format(options.format);
  NewFolder folder(options.out, "--out");
  std::string name;
  folder.fill([&](const std::string& staging) {
    name = write_published(options.source, staging, format);
    name = name.substr(name.rfind('/') + 1);
  });
  print_line("the model with its authors' names is in " + path_in(options.out, name));
}

void run(const Options& options) {
  if (!options.dtype.empty()) {
    if (options.expect.empty()) throw UsageError("--dtype is the type of the check by --expect; give --expect too");
    parse_float_type(options.dtype, "--dtype");
  }
  check_quantise_options(options.quantise);
  if (options.back && !options.quantise.form.empty()) throw UsageError("--weights has no meaning with --back");
  if (options.back) return convert_back(options);
  if (!options.format.empty()) throw UsageError("--format needs --back");
  convert(options);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required(
      "source", options->source,
      "a folder as published: config.json with pytorch_model.bin or model.safetensors (Based, attention, Mamba, Mamba-2); with "
      "--back a folder that this command wrote, with --weights also a model's folder");
  app.add_required("--out", options->out, "the folder to create");
  app.add_option("--tokenizer", options->tokenizer,
                 "the tokenizer's folder, copied into --out (default: the one in the source, if there is one)", kPath);
  app.add_option("--expect", options->expect,
                 "run the converted model on this file's \"ids\" and compare with its \"logits\"; above the tolerance, write nothing",
                 kPath);
  app.add_option("--dtype", options->dtype, "with --expect: fp64, fp32 or bf16 (default: the type of the file's logits)");
  app.add_flag("--back", options->back, "convert to the authors' names again, every tensor equal to the source's");
  app.add_option("--format", options->format, "with --back: bin or safetensors (default: as the source)");
  add_quantise_options(app, options->quantise);
  app.callback([options] { run(*options); });
}

}  // namespace convert_command

const Command command_convert{"convert",
                              "Convert a published model (Based, attention, Mamba, Mamba-2) to a model's folder, or back; quantise weights",
                              convert_command::setup};

}  // namespace based::apps
