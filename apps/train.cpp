#include <charconv>
#include <filesystem>
#include <optional>

#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/core/progress.h"
#include "based/parallel/environment.h"
#include "based/parallel/job.h"
#include "based/parallel/launcher.h"
#include "based/parallel/rank_process.h"
#include "based/train/classification.h"
#include "based/train/recipe.h"
#include "based/train/text_run.h"
#include "based/train/text_run_checks.h"

namespace based::apps {
namespace train_command {

struct Options {
  std::string config, device, devices, out = "out/train", profile;
  std::vector<std::string> set, skip_windows;
  int64_t resume_from = -1, profile_steps = 50;
  bool resume = false, overwrite = false, json = false, keys = false, classification = false, print_recipe = false;
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
               {"save_seconds", result.save_seconds},
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

void print_recipe(const Recipe& recipe, bool json) {
  if (json) return print_line(dump_json(recipe_json(recipe)));
  apps::print_text(escape_controls(recipe_text(recipe), /*keep_line_breaks=*/true));
}

// From "A..B": the places A … B − 1.
WindowRange parse_range(const std::string& text) {
  const auto wrong = [&] { return UsageError("--skip-windows must be A..B, two numbers with 0 <= A < B, got '" + text + "'"); };
  const size_t dots = text.find("..");
  if (dots == std::string::npos) throw wrong();
  const auto number = [&](const char* first, const char* last) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(first, last, value);
    if (error != std::errc() || end != last || value < 0) throw wrong();
    return value;
  };
  const char* begin = text.data();
  const WindowRange range{number(begin, begin + dots), number(begin + dots + 2, begin + text.size())};
  if (range.first >= range.last) throw wrong();
  return range;
}

Config read_keys(const Options& options) {
  Config config = Config::parse_toml_file(options.config);
  for (const auto& assignment : options.set) config.override_with(assignment);
  if (!options.device.empty()) config.set("train.device", Config(options.device, "--device: "));
  return config;
}

TextRunOptions run_options(const Options& options) {
  TextRunOptions choices;
  choices.resume = options.resume, choices.overwrite = options.overwrite, choices.resume_from = options.resume_from;
  for (const std::string& range : options.skip_windows) choices.skip.push_back(parse_range(range));
  return choices;
}

// The devices that the ranks of a job use: --devices, or as many of the kind of train.device as ranks were started.
DeviceRequest requested_devices(const Options& options, const TextRun& run) {
  if (!options.devices.empty()) return parse_devices(options.devices);
  if (run.train.device != "cpu" && run.train.device != "cuda")
    throw UsageError("train.device = " + run.train.device + ": the ranks of a job choose their GPUs by their numbers; give cpu or cuda");
  return {.cpu = run.train.device == "cpu", .count = 0};
}

TextRun read_run(const Options& options, Config config) {
  if (!options.devices.empty()) config.set("train.device", Config(parse_devices(options.devices).cpu ? "cpu" : "cuda", "--devices: "));
  return read_config<TextRun>(config);
}

// The ranks' messages go here, by this process or by launch_ranks.
std::string log_folder(const Options& options) { return path_in(options.out, "logs"); }

// Trains as one process, or as one rank of a job.
TextRunResult train(const Options& options, const Config& config, const std::optional<RankEnvironment>& rank) {
  const TextRun run = read_run(options, config);
  TextRunOptions choices = run_options(options);
  if (!rank) return run_text_training(run, options.out, choices);
  const torch::Device device = device_of_rank(*rank, requested_devices(options, run));
  check_before_start(run, rank->world);
  if (!rank->launched) {
    make_folder(log_folder(options));
    copy_log_to(rank_log_path(log_folder(options), rank->rank));
  }
  Job job(*rank, device, {.collective_timeout = collective_timeout()});
  choices.ranks = job.ranks();
  choices.one_host = rank->local_world == rank->world;
  choices.device = device.str();
  TextRunResult result = run_text_training(run, options.out, choices);
  job.leave();
  return result;
}

void report(const Options& options, const TextRunResult& result, bool prints) {
  if (options.json && prints) print_json(options, result);
  if (result.loop.failed_saves > 0)
    log_warning(std::to_string(result.loop.failed_saves) + " checkpoints could not be saved during training");
  if (!result.failure.empty()) throw Error(result.failure);
  if (!options.json && prints) print_text(options, result);
  if (!result.loop.interrupted) return;
  log_warning("stopped by a signal: step " + std::to_string(result.loop.state.step) + " is kept in " + result.checkpoint +
              "; the same command with --resume continues the run");
  throw Exit{1};
}

std::string percent(double share) { return format_number(100 * share, 1) + " %"; }

std::string class_figures_text(const ClassFigures& figures) {
  return "accuracy " + percent(figures.confusion.accuracy()) + ", MCC " + format_number(figures.confusion.mcc(), 3) + ", F1 " +
         format_number(figures.confusion.macro_f1(), 3) + ", loss " + format_number(figures.loss, 3) + " (" +
         grouped(figures.confusion.cases()) + " sequences)";
}

void report_classification(const Options& options, const ClassificationResult& result) {
  const LoopState& state = result.loop.state;
  if (options.json) {
    Json line = result.to_json();
    line.update({{"out", options.out},
                 {"seconds", result.loop.seconds},
                 {"tokens_per_second", result.loop.tokens_per_second},
                 {"interrupted", result.loop.interrupted},
                 {"failure", result.failure.empty() ? Json(nullptr) : Json(result.failure)}});
    print_line(dump_json(line));
  }
  if (!result.failure.empty()) throw Error(result.failure);
  if (result.loop.interrupted) {
    log_warning("stopped by a signal: step " + std::to_string(state.step) + " is kept in " + result.checkpoint +
                "; the same command with --resume continues the run");
    throw Exit{1};
  }
  if (options.json) return;
  print_line("trained to step " + std::to_string(state.step) + " in " + format_duration(result.loop.seconds) + "; the model of step " +
             std::to_string(state.best_step) + " is in " + options.out);
  if (result.dev) print_line("dev:  " + class_figures_text(*result.dev));
  if (result.test) print_line("test: " + class_figures_text(*result.test));
}

void classify(const Options& options, const Config& config) {
  if (!options.devices.empty() || rank_environment())
    throw UsageError("--devices: a classification trains on one device, which --device names");
  if (options.resume_from >= 0 || !options.skip_windows.empty())
    throw UsageError("--resume-from and --skip-windows are for language models; a classification has --resume");
  const auto run = read_config<ClassificationRun>(config);
  report_classification(options, run_classification(run, options.out, {.resume = options.resume, .overwrite = options.overwrite}));
}

// The profile of a training; each rank of a job writes its own.
ProfileSession start_profile(const Options& options, const std::optional<RankEnvironment>& rank = std::nullopt) {
  const std::string number = rank ? std::to_string(rank->rank) : "";
  const std::string path = options.profile.empty() || !rank || rank->rank == 0 ? options.profile : options.profile + ".rank-" + number;
  return ProfileSession(path, {.process = "based train" + (rank ? ", rank " + number : ""), .layer_steps = options.profile_steps});
}

// Starts the ranks. Errors of the config are reported once and before a folder is made, instead of by each rank.
void launch(const Options& options, const Config& config, int64_t ranks) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(options.config, ignored))
    throw UsageError(options.config + ": not a regular file; with --devices, each process reads the config");
  check_before_start(read_run(options, config), ranks);
  const int code = launch_ranks({.ranks = ranks, .log_folder = log_folder(options)});
  if (code != 0) throw Exit{code};
}

void run(const Options& options) {
  if (!options.profile.empty() && (options.keys || options.print_recipe))
    throw UsageError("--profile records a training, but --keys and --print-recipe train nothing; leave it out");
  if (options.keys) return print_keys(options.classification ? config_help<ClassificationRun>() : config_help<TextRun>());
  if (options.config.empty()) throw UsageError("train needs a config: `based train CONFIG.toml`; `based train --keys` lists its keys");
  if (options.print_recipe) return print_recipe(make_recipe(read_config<TextRun>(read_keys(options))), options.json);
  const Config config = read_keys(options);  // read once: the file may be a pipe
  if (is_classification(config)) {
    ProfileSession profile = start_profile(options);
    classify(options, config);
    return profile.finish();
  }
  if (!options.devices.empty() && !options.device.empty()) throw UsageError("--device and --devices: give one of them");
  run_options(options);  // wrong ranges are refused before any rank is started
  const std::optional<RankEnvironment> rank = rank_environment();
  if (!rank && !options.devices.empty()) {
    const DeviceRequest request = parse_devices(options.devices);
    if (request.count > 1) return launch(options, config, request.count);
  }
  ProfileSession profile = start_profile(options, rank);
  report(options, train(options, config, rank), !rank || rank->rank == 0);
  profile.finish();
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("config", options->config, "TOML file; `based train --keys` lists its keys");
  app.add_option("--set", options->set, "key=value: override a key of the file, for example train.steps=200");
  app.add_option("--device", options->device, "cpu, cuda or cuda:N; overrides train.device");
  app.add_option(
      "--devices", options->devices,
      "GPUs to train on, one process each: a number or all; cpu:N: N processes on the CPU. Under torchrun or srun, the processes "
      "are those that were started; train.batch stays the same");
  app.add_option("--out", options->out, "folder for the model, the tokenizer, the metrics and the checkpoints", kPath);
  app.add_flag("--resume", options->resume, "continue from the newest complete checkpoint in --out; start anew if there is none");
  app.add_option("--resume-from", options->resume_from,
                 "continue from the checkpoint of this step; later checkpoints are renamed to aside-step-N", {0});
  app.add_option("--skip-windows", options->skip_windows,
                 "A..B: with --resume-from, leave out places A to B - 1 of the order of the data, counted from the start of the run");
  app.add_flag("--overwrite", options->overwrite,
               "train even if --out holds a model without checkpoints, which is removed, or another tokenizer");
  app.add_flag("--keys", options->keys, "list every key with its default");
  app.add_flag("--classification", options->classification, "with --keys: the keys of a config with a table [classification]");
  app.add_flag("--print-recipe", options->print_recipe,
               "print the settings as the paper's tables have them, with the model's size; train nothing");
  app.add_option("--profile", options->profile,
                 "file for a profile of this run, with a range of time for each step and layer; https://ui.perfetto.dev opens it", kPath);
  app.add_option("--profile-steps", options->profile_steps,
                 "with --profile: training steps whose layers have ranges; later steps have only their phases; 0: all", {0});
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--devices", {"all"});
  app.callback([options] { run(*options); });
}

}  // namespace train_command

const Command command_train{"train", "Train a language model, or a classifier, from a TOML file", train_command::setup};

}  // namespace based::apps
