#include <functional>

#include "apps/command.h"
#include "apps/quantise.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "based/core/log.h"
#include "based/core/new_folder.h"
#include "based/core/output_folder.h"
#include "based/data/tokenizer.h"
#include "based/generate/text_model.h"
#include "based/models/finite.h"
#include "based/models/huggingface/huggingface.h"
#include "based/models/published/expected.h"
#include "based/models/published/published.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"

namespace based::apps {
namespace convert_command {

struct Options {
  std::string source, out, tokenizer, expect, dtype, format;
  bool back = false, hf = false;
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

// Fills the new folder with the model that `write` writes into a folder, and with its tokenizer. Compares logits and quantises if asked to.
void fill_model(const Options& options, NewFolder& folder, const Tokenizer* tokenizer,
                const std::function<void(const std::string& folder, std::optional<uint64_t> tokenizer)>& write) {
  const bool quantises = !options.quantise.form.empty();
  folder.fill([&](const std::string& staging) {
    const std::string full = quantises ? path_in(staging, "full") : staging;  // removed after it is quantised
    make_folder(full);
    std::optional<uint64_t> hash;
    if (tokenizer != nullptr) {
      tokenizer->save(full);
      hash = tokenizer->hash();
    }
    write(full, hash);
    if (!options.expect.empty()) check_expected(options, full);
    if (!quantises) return;
    quantise_folder(full, staging, options.quantise);
    remove_tree(full);
  });
}

// The end of the line that says where the model is.
std::string tokenizer_note(const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? "; it has no tokenizer: text needs one, --tokenizer" : "";
}

// The source's own names are in the warnings, so that its author finds the tensors.
void warn_of_damage(const std::string& path, const std::vector<TensorView>& tensors) {
  for (const std::string& line : not_finite_lines(tensors)) log_warning(path + ": " + line + "; the model's outputs may not be finite");
}

// Fills the new folder from a folder as published.
void convert_published(const Options& options, NewFolder& folder) {
  PublishedModel model(options.source);
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options);
  for (const std::string& warning : model.warnings()) log_warning(options.source + ": " + warning);
  warn_of_damage(model.weights_path(), model.tensors());
  if (tokenizer != nullptr && tokenizer->vocab_size() != model.config().vocab_size) {
    const int64_t before = model.config().vocab_size;
    model.fit_vocabulary(tokenizer->vocab_size());
    log_warning(options.source + ": the tokenizer has " + std::to_string(tokenizer->vocab_size()) + " tokens, 'vocab_size' is " +
                std::to_string(before) + "; ids without a token are treated as padding");
  }
  fill_model(options, folder, tokenizer.get(), [&](const std::string& full, std::optional<uint64_t> hash) { model.save(full, hash); });
  if (!options.quantise.form.empty()) log_info("--back needs the full model: a folder with quantised weights holds no source.safetensors");
  print_line("the model (" + model.family() + ", " + grouped(parameter_count(model.config())) + " parameters) is in " + options.out +
             (model.dropped() == 0 ? "" : "; " + std::to_string(model.dropped()) + " tensors have no part in it and are kept for --back") +
             tokenizer_note(tokenizer.get()));
}

// Fills the new folder from a folder that --hf or transformers' save_pretrained wrote.
void convert_huggingface(const Options& options, NewFolder& folder) {
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options);
  ModelConfig config;
  fill_model(options, folder, tokenizer.get(), [&](const std::string& full, std::optional<uint64_t> hash) {
    config = read_huggingface_model(options.source, full, hash);
    warn_of_damage(options.source, SafetensorsFile(path_in(full, "model.safetensors")).tensors());
  });
  print_line("the model (" + grouped(parameter_count(config)) + " parameters) is in " + options.out + tokenizer_note(tokenizer.get()));
}

// Quantises a model's folder of this library.
void convert_own(const Options& options, NewFolder& folder) {
  if (options.quantise.form.empty())
    throw UsageError(
        options.source +
        ": is a model's folder of this library already; --weights int8 or int4 quantises it, --hf converts it for transformers");
  if (!options.tokenizer.empty() || !options.expect.empty())
    throw UsageError("--tokenizer and --expect are for a folder as published; " + options.source + " is a model's folder of this library");
  const std::string weights = path_in(options.source, "model.safetensors");
  warn_of_damage(weights, SafetensorsFile(weights).tensors());
  folder.fill([&](const std::string& staging) { quantise_folder(options.source, staging, options.quantise); });
  print_line("the model with " + options.quantise.form + " weights is in " + options.out);
}

// Writes tokenizer.json and the settings with which transformers' AutoTokenizer gives the same ids.
void save_huggingface_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  tokenizer.save(folder);
  for (const char* name : {"vocab.json", "merges.txt"}) remove_file(path_in(folder, name));  // the same in another format
  Json settings{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}, {"padding_side", "left"}};
  settings["model_input_names"] = Json::array({"input_ids", "attention_mask"});
  if (const std::optional<int32_t> end = tokenizer.end_of_text())
    settings["eos_token"] = settings["pad_token"] = std::string(tokenizer.token_bytes(*end));
  write_file_atomic(path_in(folder, "tokenizer_config.json"), dump_json(settings, 2) + "\n");
}

// Writes a model's folder of this library as a folder for transformers.
void convert_to_huggingface(const Options& options) {
  if (options.back || !options.expect.empty() || !options.dtype.empty() || !options.format.empty() || !options.quantise.form.empty())
    throw UsageError("--back, --expect, --dtype, --format and --weights have no meaning with --hf");
  if (!is_own_model(options.source))
    throw UsageError(options.source + ": --hf converts a model's folder of this library; convert the folder without --hf first");
  NewFolder folder(options.out, "--out");
  const std::unique_ptr<Tokenizer> tokenizer = find_tokenizer(options);
  if (tokenizer != nullptr)
    require_same_tokenizer(read_model_files(options.source), *tokenizer, options.tokenizer.empty() ? options.source : options.tokenizer);
  folder.fill([&](const std::string& staging) {
    if (tokenizer != nullptr) save_huggingface_tokenizer(*tokenizer, staging);
    write_huggingface_model(options.source, staging, tokenizer == nullptr ? std::nullopt : tokenizer->end_of_text());
  });
  print_line("the model for transformers is in " + options.out + tokenizer_note(tokenizer.get()));
}

void convert(const Options& options) {
  if (path_exists(options.source) && !is_folder(options.source))
    throw Error(options.source + ": is no folder; name the folder with config.json and the weights");
  NewFolder folder(options.out, "--out");
  if (is_own_model(options.source)) return convert_own(options, folder);
  if (!options.expect.empty()) expected_dtype(SafetensorsFile(options.expect));  // refuses a wrong file before the work
  if (is_huggingface_model(options.source)) return convert_huggingface(options, folder);
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
  if (options.hf) return convert_to_huggingface(options);
  if (options.back) return convert_back(options);
  if (!options.format.empty()) throw UsageError("--format needs --back");
  convert(options);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required(
      "source", options->source,
      "a folder as published: config.json with pytorch_model.bin or model.safetensors (Based, attention, Mamba, Mamba-2), or one for "
      "transformers that --hf wrote; with --back a folder that this command wrote, with --hf a model's folder, with --weights also one");
  app.add_required("--out", options->out, "the folder to create");
  app.add_option("--tokenizer", options->tokenizer,
                 "the tokenizer's folder, copied into --out (default: the one in the source, if there is one)", kPath);
  app.add_option("--expect", options->expect,
                 "run the converted model on this file's \"ids\" and compare with its \"logits\"; above the tolerance, write nothing",
                 kPath);
  app.add_option("--dtype", options->dtype, "with --expect: fp64, fp32 or bf16 (default: the type of the file's logits)");
  app.add_flag("--back", options->back, "convert to the authors' names again, every tensor equal to the source's");
  app.add_flag("--hf", options->hf,
               "write a folder that transformers loads with the Python package based_cpp: AutoModelForCausalLM, AutoTokenizer");
  app.add_option("--format", options->format, "with --back: bin or safetensors (default: as the source)");
  add_quantise_options(app, options->quantise);
  app.offer("--format", {"bin", "safetensors"});
  app.callback([options] { run(*options); });
}

}  // namespace convert_command

const Command command_convert{
    "convert", "Convert a model from or to other programs: published Based, attention, Mamba and Mamba-2, transformers; quantise weights",
    convert_command::setup};

}  // namespace based::apps
