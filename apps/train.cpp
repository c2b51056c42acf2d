#include "apps/command.h"
#include "based/core/json.h"
#include "based/core/log.h"
#include "based/core/progress.h"
#include "based/train/text_run.h"

namespace based::apps {
namespace train_command {

struct Options {
  std::string config, device, out = "out/train";
  std::vector<std::string> set;
  bool resume = false, overwrite = false, json = false, keys = false;
};

void print_json(const Options& options, const TextRunResult& result) {
  const LoopResult& loop = result.loop;
  Json line{{"out", options.out}, {"steps", loop.state.step}, {"resumed_from", nullptr}, {"interrupted", loop.interrupted}};
  if (result.resumed_from >= 0) line["resumed_from"] = result.resumed_from;
  line.update({{"parameters", result.parameters},
               {"seconds", loop.seconds},
               {"tokens_per_second", loop.tokens_per_second},
               {"peak_memory_bytes", loop.peak_memory},
               {"loss", loop.state.loss},
               {"skipped_steps", loop.state.skipped},
               {"failed_saves", loop.failed_saves},
               {"checkpoint", result.checkpoint},
               {"evaluation", loop.state.evaluation},
               {"failure", nullptr}});
  if (!result.failure.empty()) line["failure"] = result.failure;
  if (loop.state.best_step >= 0) line["best"] = {{"step", loop.state.best_step}, {"loss", loop.state.best_loss}};
  print_line(dump_json(line));
}

void print_text(const Options& options, const TextRunResult& result) {
  const LoopResult& loop = result.loop;
  std::string line = (loop.interrupted ? "stopped after step " : "trained to step ") + std::to_string(loop.state.step);
  line += " in " + format_duration(loop.seconds) + ", " + format_count(loop.tokens_per_second) + " tokens/s, at most " +
          format_bytes(loop.peak_memory) + " of memory";
  const auto& figures = loop.state.evaluation;
  if (figures.contains("loss")) {
    line += "; held-out loss " + format_number(figures.at("loss"), 3) + ", perplexity " + format_number(figures.at("perplexity"), 2);
  }
  print_line(line);
  const std::string best = std::to_string(loop.state.best_step) + ", loss " + format_number(loop.state.best_loss, 3);
  print_line("model in " + options.out + (loop.state.best_step < 0 ? "" : "; best evaluation at step " + best));
}

void run(const Options& options) {
  if (options.keys) return print_keys(config_help<TextRun>());
  if (options.config.empty()) throw UsageError("train needs a config: `based train CONFIG.toml`; `based train --keys` lists its keys");
  Config config = Config::parse_toml_file(options.config);
  for (const auto& assignment : options.set) config.override_with(assignment);
  if (!options.device.empty()) config.set("train.device", Config(options.device, "--device: "));
  const TextRunResult result = run_text_training(read_config<TextRun>(config), options.out, options.resume, options.overwrite);
  if (options.json) print_json(options, result);
  if (result.loop.failed_saves > 0)
    log_warning(std::to_string(result.loop.failed_saves) + " checkpoints could not be saved during training");
  if (!result.failure.empty()) throw Error(result.failure);
  if (!options.json) print_text(options, result);
  if (!result.loop.interrupted) return;
  log_warning("stopped by a signal: step " + std::to_string(result.loop.state.step) + " is kept in " + result.checkpoint +
              "; the same command with --resume continues the run");
  throw Exit{1};
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("config", options->config, "TOML file; `based train --keys` lists its keys");
  app.add_option("--set", options->set, "key=value: override a key of the file, for example train.steps=200");
  app.add_option("--device", options->device, "cpu, cuda or cuda:N; overrides train.device");
  app.add_option("--out", options->out, "folder for the model, the tokenizer, the metrics and the checkpoints", kPath);
  app.add_flag("--resume", options->resume, "continue from the newest complete checkpoint in --out; start anew if there is none");
  app.add_flag("--overwrite", options->overwrite,
               "train even if --out holds a model without checkpoints, which is removed, or another tokenizer");
  app.add_flag("--keys", options->keys, "list every key with its default");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { run(*options); });
}

}  // namespace train_command

const Command command_train{"train", "Train a language model from a TOML file", train_command::setup};

}  // namespace based::apps
