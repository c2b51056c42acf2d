#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/interrupt.h"
#include "based/experiments/report.h"
#include "based/experiments/run_curves.h"
#include "based/experiments/sweep.h"

namespace based::apps {
namespace experiment_command {

namespace fs = std::filesystem;

struct Options {
  std::string config, scale, out, device, commit;
  std::vector<std::string> set;
  int64_t runs_per_device = 0, minutes = 0;
  bool fresh = false, retry = false, save_models = false, json = false, keys = false;

  std::string folder() const {
    if (!out.empty()) return out;
    std::error_code failed;
    const fs::path file = fs::absolute(config, failed);
    if (failed) throw Error(config + ": the current folder is not known (" + failed.message() + "); name the file by its whole path");
    return file.parent_path().lexically_normal().string();
  }
  std::string in_folder(const std::string& name) const { return (fs::path(folder()) / name).string(); }
};

void require_folder(const std::string& path, const std::string& remedy) {
  std::error_code none;
  if (path_exists(path) && !fs::is_directory(path, none)) throw Error(path + ": is a file, not a folder; " + remedy);
}

ExperimentFile open(const Options& options) {
  if (!options.out.empty()) require_folder(options.out, "--out names the folder for results/ and the figures");
  require_folder(options.in_folder("results"), "it is where results are kept: move it away, or name another folder with --out");
  return read_experiment(options.config, options.scale, options.set);
}

void print_report(const ExperimentFile& file, const ResultsFolder& results, bool json) {
  const Report report = make_report(file, results);
  if (json) return print_line(report_json(file, report));
  for (const std::string& line : report_lines(file, report)) print_line(line);
}

std::string names_of(const std::vector<torch::Device>& devices) {
  std::string names;
  for (const torch::Device& device : devices) names += (names.empty() ? "" : ", ") + device.str();
  return names;
}

void tell_of_gpu_results(const ExperimentFile& file, const ResultsFolder& results) {
  const std::unordered_set<std::string> kept = results.keys();
  if (kept.empty()) return;
  const auto count = std::count_if(file.runs().begin(), file.runs().end(),
                                   [&](const PlannedRun& planned) { return kept.contains(run_key(*file.kind, planned, torch::kCUDA)); });
  if (count == 0) return;
  print_message(std::to_string(count) + " of " + std::to_string(file.runs().size()) + " runs are kept from a GPU, in " + results.place() +
                "; the CPU does them again, and status and plot keep showing the GPU's results");
}

// Prints how many models could not be saved, or are missing.
void tell_of_models(const SweepOutcome& outcome, const std::string& folder) {
  if (outcome.unsaved > 0) {
    print_message(std::to_string(outcome.unsaved) + " models could not be saved in " + folder +
                  "; their results are kept, and --retry --save-models does these runs again");
  } else if (outcome.without_model > 0) {
    print_message(std::to_string(outcome.without_model) + " of " + std::to_string(outcome.runs - outcome.failed) +
                  " finished runs have no model in " + folder +
                  ", and only training makes one: --retry --save-models does these runs again");
  }
}

SweepOptions sweep_options(const Options& options, const ExperimentFile& file) {
  constexpr double kSecondsPerMinute = 60;
  SweepOptions sweep;
  sweep.devices = sweep_devices(options.device);
  if (options.device.empty() && file.kind->one_at_a_time) sweep.devices.resize(1, torch::kCPU);
  sweep.runs_per_device = options.runs_per_device;
  sweep.fresh = options.fresh;
  sweep.retry = options.retry;
  sweep.time_limit = kSecondsPerMinute * static_cast<double>(options.minutes);
  sweep.unfinished = options.in_folder("unfinished");
  sweep.commit = options.commit;
  if (options.save_models) sweep.save_models = options.in_folder("models");
  return sweep;
}

// Prints how far an interrupted sweep is, and ends with 1 unless it stopped at its time limit.
void end_interrupted(const Options& options, const SweepOutcome& outcome, const ResultsFolder& results) {
  const bool by_signal = interrupt_signal() != 0;
  print_message((by_signal ? "interrupted; " : "stopped after " + std::to_string(options.minutes) + " minutes; ") +
                std::to_string(outcome.kept + outcome.done) + " of " + std::to_string(outcome.runs) + " runs are finished and kept in " +
                results.place() + "; the same command" + (options.fresh ? " without --fresh" : "") + " continues");
  if (by_signal) throw Exit{1};
}

void run(const Options& options) {
  if (options.keys) {
    for (const ExperimentKind* kind : experiment_kinds()) {
      print_line("kind = \"" + std::string(kind->name) + "\": " + kind->summary);
      print_keys(kind->help());
    }
    return;
  }
  if (options.config.empty()) throw UsageError("experiment run needs a config: `based experiment run CONFIG.toml`; --keys lists its keys");
  const ExperimentFile file = open(options);
  const SweepOptions sweep = sweep_options(options, file);
  ResultsFolder results(options.in_folder("results"));
  if (options.device.empty()) print_message("on " + names_of(sweep.devices));
  if (sweep.devices.front().is_cpu()) tell_of_gpu_results(file, results);
  const SweepOutcome outcome = run_sweep(file, results, sweep);
  if (outcome.interrupted) return end_interrupted(options, outcome, results);
  print_report(file, results, options.json);
  if (!options.json)
    print_line("in " + results.place() + "; " + std::to_string(outcome.kept) + " of " + std::to_string(outcome.runs) +
               " runs were there before" + (outcome.kept > 0 ? " (--fresh does them again)" : ""));
  tell_of_models(outcome, sweep.save_models);
  if (outcome.failed > 0)
    print_message(std::to_string(outcome.failed) + " of " + std::to_string(outcome.runs) + " runs failed; --retry does them again");
  if (outcome.failed > 0 || outcome.unsaved > 0) throw Exit{1};
}

void status(const Options& options) { print_report(open(options), ResultsFolder(options.in_folder("results")), options.json); }

void plot(const Options& options) {
  const ExperimentFile file = open(options);
  const ResultsFolder results(options.in_folder("results"));
  const Report report = make_report(file, results);
  const std::vector<Figure> figures = file.experiment->figures(report.points);
  if (figures.empty()) throw Error(results.place() + ": no run of " + options.config + " is finished: there is nothing to draw");
  const std::string suffix = file.scale.empty() ? "" : "-" + file.scale;
  const std::string markdown_table = file.experiment->table(report.points), latex_table = file.experiment->latex_table(report.points);
  for (const Figure& figure : figures)
    for (const std::string& written : write_plot(figure.plot, options.in_folder(figure.name + suffix))) print_line(written);
  for (const auto& [ending, table] : {std::pair{".md", &markdown_table}, {".tex", &latex_table}}) {
    if (table->empty()) continue;
    const std::string path = options.in_folder("table" + suffix + ending);
    write_file_atomic(path, *table);
    print_line(path);
  }
}

void pack(const Options& options) {
  const ExperimentFile file = open(options);
  ResultsFolder results(options.in_folder("results"));
  const PackOutcome outcome = results.pack(file);
  print_line(results.packed_file() + ": " + std::to_string(outcome.lines) + " results, " + std::to_string(outcome.packed) +
             " of them packed now");
  if (outcome.left > 0)
    print_message(std::to_string(outcome.left) + " files in " + results.folder() +
                  " were replaced meanwhile and stay; `pack` again packs them");
}

struct CurveOptions {
  std::vector<std::string> runs;
  std::string out, title = "Training";
};

void draw_curves(const CurveOptions& options) {
  require_folder(options.out, "--out names the folder for the figures");
  std::vector<RunCurves> runs;
  for (const std::string& folder : options.runs) runs.push_back(read_run_curves(folder));
  const std::vector<Figure> figures = curve_figures(runs, options.title);
  if (figures.empty()) throw Error(options.runs.front() + "/metrics.jsonl: has no loss yet: there is nothing to draw");
  make_folder(options.out);
  for (const Figure& figure : figures)
    for (const std::string& written : write_plot(figure.plot, (fs::path(options.out) / figure.name).string())) print_line(written);
}

std::shared_ptr<Options> common(CommandLine app, bool config_is_optional) {
  auto options = std::make_shared<Options>();
  const std::string what = "the experiment's TOML file";
  config_is_optional ? app.add_option("config", options->config, what + "; --keys lists its keys")
                     : app.add_required("config", options->config, what);
  app.add_option("--scale", options->scale, "use the keys of the file's table [scale.NAME], for example small");
  app.add_option("--set", options->set, "key=value: override a key of the file, for example training.epochs=2");
  app.add_option("--out", options->out, "folder for results and figures (default: the file's folder)", kPath);
  return options;
}

void setup_run(CommandLine app) {
  auto options = common(app, true);
  app.add_option("--device", options->device, "cpu, cuda, cuda:N, several with commas, or all (default: all GPUs, else the CPU)");
  app.add_option("--runs-per-device", options->runs_per_device, "concurrent runs per device; 0: 1 on the CPU, 4 on a GPU", {0, 256});
  app.add_option("--minutes", options->minutes, "stop after so many minutes, as at Ctrl-C, but with exit code 0; 0: no limit",
                 {0, 1'000'000});
  app.add_option("--commit", options->commit, "commit of the program, to record in the results of kind = \"language\"");
  app.add_flag("--fresh", options->fresh, "repeat all runs, including finished ones");
  app.add_flag("--retry", options->retry, "repeat failed runs; with --save-models also runs whose model is missing");
  app.add_flag("--save-models", options->save_models, "save each trained model in models/, next to results/");
  app.add_flag("--keys", options->keys, "list every key with its default");
  app.add_flag("--json", options->json, "print the output of `status --json` at the end");
  app.callback([options] { run(*options); });
}

void setup_status(CommandLine app) {
  auto options = common(app, false);
  app.add_flag("--json", options->json, "print JSON, one entry per finished run");
  app.callback([options] { status(*options); });
}

void setup_plot(CommandLine app) {
  auto options = common(app, false);
  app.callback([options] { plot(*options); });
}

void setup_pack(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("config", options->config, "the experiment's TOML file");
  app.add_option("--out", options->out, "folder with results/ (default: the file's folder)", kPath);
  app.callback([options] { pack(*options); });
}

void setup_curves(CommandLine app) {
  auto options = std::make_shared<CurveOptions>();
  app.add_required("runs", options->runs, "folders of runs of `based train`, with run.json, metrics.jsonl and timing.jsonl");
  app.add_required("--out", options->out, "folder for training-loss and held-out-loss, .svg and .png");
  app.add_option("--title", options->title, "of the figures");
  app.callback([options] { draw_curves(*options); });
}

void setup(CommandLine app) {
  setup_run(app.add_subcommand("run", "Execute the runs that are not done yet"));
  setup_status(app.add_subcommand("status", "Print which runs are done, and their results"));
  setup_plot(app.add_subcommand("plot", "Draw the figures and write the table from the stored results"));
  setup_pack(app.add_subcommand("pack", "Move the results of finished runs from their files into results.jsonl, one run per line"));
  setup_curves(app.add_subcommand("curves", "Draw the losses of runs of `based train`, with the places where they were resumed"));
}

}  // namespace experiment_command

const Command command_experiment{
    "experiment", "Execute and plot many training runs from one file: recall against state size, perplexity of language models",
    experiment_command::setup};

}  // namespace based::apps
