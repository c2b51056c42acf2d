#include "apps/bench_figures.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <sstream>

#include "apps/bench_report.h"
#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/output_folder.h"
#include "based/models/device.h"
#include "bench/figures.h"

namespace based::apps {
namespace bench_figures_command {

struct Options {
  std::string device = "cpu", commit, plot, out;
  std::vector<std::string> only, read;
  int64_t threads = 0;
  bool small = false, json = false, list = false, overwrite = false;
};

// The names of a list that is separated by commas and by occurrences of the option; all figures if it is empty.
std::vector<bench::FigurePart> chosen_parts(const std::vector<std::string>& lists) {
  std::vector<bench::FigurePart> chosen;
  for (const std::string& list : lists) {
    std::stringstream names(list);
    try {
      for (std::string name; std::getline(names, name, ',');) chosen.push_back(bench::find_figure(name));
    } catch (const UsageError& error) {
      throw UsageError("--only: " + std::string(error.what()));
    }
  }
  return chosen.empty() ? bench::figure_parts() : chosen;
}

OutputRule pictures_of(const std::vector<bench::FigurePart>& parts) {
  Holding pictures{"pictures of figures", {}};
  for (const bench::FigurePart& part : parts)
    for (const char* ending : {".svg", ".png"}) pictures.names.push_back(part.name + ending);
  return {.option = "--plot", .own = {pictures}, .foreign = {}};
}

// The footer of the pictures: the command, the machine, the version and the date.
std::string footer(const Json& head) {
  const std::string commit = head.value("commit", ""), device = head.value("device", "");
  return "based bench figures --device " + std::string(device == "cpu" ? "cpu" : "cuda") + (head.value("small", false) ? " --small" : "") +
         "; " + device + "; version " + head.value("version", "") + (commit.empty() ? "" : ", commit " + commit) + "; " +
         head.value("date", "").substr(0, 10);
}

void draw(const Options& options, const Json& head, const std::vector<bench::Figure>& figures, OutputFolder& folder) {
  for (const bench::Figure& figure : figures)
    for (const std::string& file : write_plot(bench::figure_plot(figure, footer(head)), options.plot + "/" + figure.name))
      std::fprintf(stderr, "%s\n", file.c_str());
  folder.keep();
}

struct Report {
  Json head;  // without the figures
  std::vector<bench::Figure> figures;
};

std::string report_text(const Report& report) {
  Json all = report.head;
  all["figures"] = Json::array();
  for (const bench::Figure& figure : report.figures) all["figures"].push_back(bench::to_json(figure));
  return dump_json(all, 2) + "\n";
}

constexpr const char* kUnfinished = ".part";  // the ending of the file of a run that has not finished

void write_report(const std::string& path, const Report& report) { write_file_atomic(path, report_text(report)); }

Report parse_report(const std::string& path) {
  Report report{parse_json(read_file(path), path), {}};
  if (!report.head.is_object() || !report.head.contains("figures") || !report.head["figures"].is_array())
    throw Error(path + ": has no list 'figures'; it must be a file of `based bench figures --out`");
  try {
    for (const Json& figure : report.head["figures"]) report.figures.push_back(bench::figure_from_json(figure));
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
  report.head.erase("figures");
  return report;
}

// The figures of all files, under the head of the first one. The files must be of one machine and version.
Report joined_reports(const std::vector<std::string>& paths) {
  Report all = parse_report(paths.front());
  for (size_t i = 1; i < paths.size(); ++i) {
    const Report more = parse_report(paths[i]);
    for (const char* key : {"version", "commit", "device", "driver", "kernels", "threads", "small"})
      if (all.head.value(key, Json()) != more.head.value(key, Json()))
        throw Error(paths[i] + ": its '" + key + "' is " + more.head.value(key, Json()).dump() + ", but that of " + paths.front() + " is " +
                    all.head.value(key, Json()).dump() + "; figures of one file are made on one machine by one version");
    for (const bench::Figure& figure : more.figures) {
      for (const bench::Figure& known : all.figures)
        if (known.name == figure.name) throw Error(paths[i] + ": the figure '" + figure.name + "' is also in an earlier file");
      all.figures.push_back(figure);
    }
  }
  return all;
}

// Measures the figures one by one. After each, the report is written beside --out, so that an interrupted run keeps the finished figures
// and may be repeated.
Report measure(const Options& options, const std::vector<bench::FigurePart>& parts) {
  const torch::Device device = parse_device(options.device, "--device");
  if (options.threads > 0) torch::set_num_threads(static_cast<int>(options.threads));
  bench::Context context;
  context.device = context.ceilings.device = device;
  context.quick = context.ceilings.quick = options.small || !device.is_cuda();
  Report report{report_head(context, options.commit), {}};
  report.head["small"] = context.quick;
  const std::string unfinished = options.out + kUnfinished;
  if (!options.out.empty()) check_writable(options.out);  // before the long measurement
  bench::FigureRun run{.context = context};
  if (!options.json)
    run.report = [](const bench::Figure& figure, const bench::FigureSeries& series, const bench::FigurePoint& point) {
      print_line(bench::to_line(figure, series, point));
    };
  for (const bench::FigurePart& part : parts) {
    report.figures.push_back(part.measure(run));
    for (const bench::FigureVerdict& verdict : report.figures.back().verdicts)
      if (!options.json) print_line(bench::to_line(verdict));
    if (!options.out.empty()) write_report(unfinished, report);
  }
  if (!options.out.empty()) {
    write_report(options.out, report);
    remove_file(unfinished);
  }
  return report;
}

void run(const Options& options) {
  if (options.list) {
    for (const bench::FigurePart& part : bench::figure_parts()) print_line(part.name + ": " + part.summary);
    return;
  }
  const std::vector<bench::FigurePart> parts = chosen_parts(options.only);
  if (options.overwrite && options.plot.empty() && options.out.empty()) throw UsageError("--overwrite goes with --plot or --out");
  if (!options.read.empty() && !options.only.empty()) throw UsageError("--read draws all figures of the files: leave --only out");
  if (!options.out.empty() && !options.overwrite && path_exists(options.out))
    throw UsageError("--out " + options.out + ": the file exists; --overwrite replaces it");
  std::optional<OutputFolder> folder;  // checked before the long measurement
  if (!options.plot.empty()) folder.emplace(options.plot, pictures_of(parts), options.overwrite);
  const Report report = options.read.empty() ? measure(options, parts) : joined_reports(options.read);
  if (!options.read.empty()) {
    if (!options.out.empty()) write_report(options.out, report);
    for (const bench::Figure& figure : report.figures)
      for (const bench::FigureVerdict& verdict : figure.verdicts)
        if (!options.json) print_line(bench::to_line(verdict));
  }
  if (options.json) print_text(report_text(report));
  if (folder) draw(options, report.head, report.figures, *folder);
}

}  // namespace bench_figures_command

void setup_bench_figures(CommandLine app) {
  using namespace bench_figures_command;
  auto options = std::make_shared<Options>();
  app.add_option("--device", options->device, "cpu, cuda or cuda:N; on the CPU the sizes are always small");
  app.add_option("--only", options->only, "measure only these figures: names separated by commas; may be given several times");
  app.add_flag("--list", options->list, "list the figures");
  app.add_flag("--small", options->small, "tiny sizes and models: checks that the figures run; the timings are not meaningful");
  app.add_option("--out", options->out, "write the figures to this JSON file; until the end, FILE.part has those that are finished", kPath);
  app.add_option("--plot", options->plot, "draw each figure into this folder, .svg and .png", kPath);
  app.add_flag("--overwrite", options->overwrite, "replace existing files of --out and --plot");
  app.add_option(
      "--read", options->read,
      "measure nothing, but join the figures of this file of an earlier --out; may be given several times, for files of the same "
      "machine and version");
  app.add_option("--commit", options->commit, "commit to record in the JSON");
  app.add_option("--threads", options->threads, "CPU threads; 0: all cores", {0, 4096});
  app.add_flag("--json", options->json, "print the JSON instead of a line for each point");
  app.offer("--only", [] { return names_of(bench::figure_parts()); });
  app.callback([options] { run(*options); });
}

}  // namespace based::apps
