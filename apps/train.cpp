#include "apps/command.h"
#include "based/core/json.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/train/text_run.h"

namespace based::apps {
namespace {

struct Options {
  std::string config, out = "out/train";
  std::vector<std::string> set;
  bool json = false, keys = false;
};

void run(const Options& options) {
  if (options.keys) return print_keys(config_help<TextRun>());
  if (options.config.empty()) throw UsageError("train needs a config: `based train CONFIG.toml`; `based train --keys` lists its keys");
  Config config = Config::parse_toml_file(options.config);
  for (const auto& assignment : options.set) config.override_with(assignment);
  const TextRunResult result = run_text_training(read_config<TextRun>(config), options.out);
  const auto& evaluation = result.loop.evaluation;
  if (options.json) {
    print_line(dump_json({{"out", options.out},
                          {"steps", result.loop.steps},
                          {"interrupted", result.loop.interrupted},
                          {"parameters", result.parameters},
                          {"seconds", result.loop.seconds},
                          {"tokens_per_second", result.loop.tokens_per_second},
                          {"loss", result.loop.loss},
                          {"evaluation", evaluation}}));
  } else {
    print_line(std::string(result.loop.interrupted ? "stopped after " : "trained ") + std::to_string(result.loop.steps) + " steps in " +
               format_duration(result.loop.seconds) + ", " + format_count(result.loop.tokens_per_second) + " tokens/s; held-out loss " +
               format_number(evaluation["loss"].get<double>(), 3) + ", perplexity " +
               format_number(evaluation["perplexity"].get<double>(), 2));
    print_line("model in " + options.out);
  }
  if (result.loop.interrupted) {
    log_warning("interrupted: kept the model as of step " + std::to_string(result.loop.steps) + " in " + options.out);
    throw Exit{1};
  }
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("config", options->config, "TOML file; `based train --keys` lists its keys");
  app.add_option("--set", options->set, "key=value, in place of the file's: train.steps=200");
  app.add_option("--out", options->out, "folder for the model, the tokenizer and metrics.jsonl");
  app.add_flag("--keys", options->keys, "list every key with its default");
  app.add_flag("--json", options->json, "for machines");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_train{"train", "Train a language model from a TOML file", setup};

}  // namespace based::apps
