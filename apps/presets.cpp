#include "apps/command.h"
#include "based/core/json.h"
#include "based/core/new_folder.h"
#include "based/data/tokenizer.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"

namespace based::apps {
namespace presets_command {

struct Options {
  std::string name, out, tokenizer, dtype = "fp32";
  int64_t seed = 0;
  bool json = false;
};

// Saves a model with initial weights, for measurements of its speed and size.
void make_model(const Options& options) {
  const torch::Dtype dtype = parse_float_type(options.dtype, "--dtype");
  const ModelConfig& config = find_preset(options.name);
  const auto tokenizer = make_tokenizer(options.tokenizer);
  if (tokenizer->vocab_size() != config.vocab_size)
    throw UsageError("--tokenizer " + options.tokenizer + ": has " + std::to_string(tokenizer->vocab_size()) + " tokens, " + options.name +
                     " needs " + std::to_string(config.vocab_size));
  NewFolder folder(options.out, "--out");
  const auto made = based::make_model(config, options.seed);
  LanguageModel& model = *made;
  model.to(dtype);
  folder.fill([&](const std::string& staging) {
    tokenizer->save(staging);
    save_model(model, staging, tokenizer->hash());
  });
  print_line("a model of " + grouped(model.parameter_count()) + " parameters with initial weights is in " + options.out);
}

void list(bool json) {
  Json list = Json::array();
  for (const auto& preset : presets()) {
    const int64_t parameters = parameter_count(preset.config);
    const int64_t layers = static_cast<int64_t>(preset.config.layers.size());
    if (json) {
      list.push_back({{"name", preset.name},
                      {"parameters", parameters},
                      {"d_model", preset.config.d_model},
                      {"layers", layers},
                      {"vocab_size", preset.config.vocab_size},
                      {"summary", preset.summary}});
      continue;
    }
    print_line(padded(preset.name, 13) + " " + padded_left(grouped(parameters), 13) + " parameters  " + preset.summary);
  }
  if (json) print_line(dump_json({{"presets", list}}));
}

void run(const Options& options) {
  parse_float_type(options.dtype, "--dtype");
  if (options.out.empty() != options.tokenizer.empty()) throw UsageError("--out and --tokenizer go together");
  if (options.out.empty() && options.name.empty()) return list(options.json);
  if (options.name.empty()) throw UsageError("--out needs the name of a preset");
  options.out.empty() ? print_text(write_config(find_preset(options.name)).to_json() + "\n") : make_model(options);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("name", options->name, "print this preset's config.json");
  app.add_option("--out", options->out,
                 "instead: create this folder with a model of the preset with initial weights, to measure its speed and size", kPath);
  app.add_option("--tokenizer", options->tokenizer, "with --out: the tokenizer's folder, or 'bytes'", kPath);
  app.add_option("--dtype", options->dtype, "with --out: fp32, bf16 or fp64");
  app.add_option("--seed", options->seed, "with --out: seed of the weights");
  app.add_flag("--json", options->json, "print JSON");
  app.offer("name", [] { return names_of(presets()); });
  app.offer("--tokenizer", {"bytes"}, true);
  app.callback([options] { run(*options); });
}

}  // namespace presets_command

const Command command_presets{"presets", "List the model presets with their parameter counts; create a model with initial weights",
                              presets_command::setup};

}  // namespace based::apps
