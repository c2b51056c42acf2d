#include "bench/compare.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>

#include "apps/bench_figures.h"
#include "apps/bench_report.h"
#include "apps/command.h"
#include "based/core/config.h"
#include "based/core/json.h"
#include "based/core/output_folder.h"
#include "based/kernels/common/cpu/isa.h"
#include "based/models/config.h"
#include "based/models/device.h"

namespace based::apps {
namespace bench_command {

struct Options {
  std::vector<std::string> names;
  std::string model, commit, device = "cpu", plot;
  std::vector<std::string> presets;
  int64_t threads = 0;
  bool quick = false, json = false, compare = false, overwrite = false;
};

const bench::Case& find_case(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& one : bench::cases()) {
    if (one.name == name) return one;
    names.emplace_back(one.name);
  }
  const std::string close = nearest(name, names);
  throw UsageError("no benchmark '" + name + "'" + (close.empty() ? "" : "; did you mean '" + close + "'?") +
                   "; `based bench` without a name lists them");
}

// The cases with these names, or all cases that measure this type of device.
std::vector<const bench::Case*> chosen_cases(const std::vector<std::string>& names, torch::Device device) {
  std::vector<const bench::Case*> chosen;
  const bool all = names.empty() || (names.size() == 1 && names[0] == "all");
  for (const auto& one : bench::cases())
    if (all && one.on_gpu == device.is_cuda()) chosen.push_back(&one);
  for (const auto& name : all ? std::vector<std::string>() : names) {
    chosen.push_back(&find_case(name));
    if (chosen.back()->on_gpu != device.is_cuda())
      throw UsageError("benchmark '" + name + "' measures " + (chosen.back()->on_gpu ? "a GPU: give --device cuda" : "the CPU"));
  }
  return chosen;
}

Json to_json(const bench::Result& result) {
  Json json{{"name", result.name},   {"shape", result.shape}, {"value", result.value},
            {"unit", result.unit},   {"floor", result.floor}, {"floor_fraction", result.floor_fraction},
            {"bound", result.bound}, {"error", result.error}};
  if (!result.headline.empty()) json["headline"] = result.headline;
  for (const auto& [name, value] : result.more) json[name] = value;
  return json;
}

void print(const bench::Result& result) {
  std::string line = padded(result.name + ", " + result.shape, 65) + " ";
  line += format_number(result.value, result.value < 10 ? 3 : 1) + " " + result.unit + "   " +
          format_number(100 * result.floor_fraction, 0) + " % of floor " + format_number(result.floor, result.floor < 10 ? 3 : 1) + " (" +
          result.bound + "), error " + scientific(result.error);
  for (const auto& [name, value] : result.more) line += ", " + name + " " + format_number(value, 3);
  print_line(line);
}

// The footer of the figures: the command, the device and the date, so that a picture on its own shows how it was made.
std::string made_by(const Options& options, torch::Device device) {
  return "based bench decode --compare" + std::string(options.quick ? " --quick" : "") + ", bf16, sampling included; " +
         device_in_words(device) + ", " + today();
}

OutputRule pictures_rule() {
  const Holding pictures{"pictures of a comparison", {"decode_batch.svg", "decode_batch.png", "decode_context.svg", "decode_context.png"}};
  return {.option = "--plot", .own = {pictures}, .foreign = {}};
}

void compare(const Options& options, bench::Context& context) {
  if (options.names.size() != 1) throw UsageError("--compare needs the name of one benchmark: based bench decode --compare");
  const bench::Case& one = find_case(options.names[0]);
  if (one.compare == nullptr) throw UsageError("benchmark '" + options.names[0] + "' compares no models; decode does");
  if (context.presets.empty())
    context.presets =
        options.quick ? std::vector<std::string>{"based-tiny", "attn-tiny"} : std::vector<std::string>{"based-360m", "attn-360m"};
  if (!options.json) {
    for (const std::string& line : bench::comparison_heads(context.presets)) print_line(line);
    context.report = [&context](const bench::Result&) {
      const size_t models = context.presets.size(), done = context.results.size();
      if (done % models == 0)
        print_line(bench::comparison_line({context.results.end() - static_cast<int64_t>(models), context.results.end()}));
    };
  }
  std::optional<OutputFolder> folder;  // checked before the long measurement
  if (!options.plot.empty()) folder.emplace(options.plot, pictures_rule(), options.overwrite);
  one.compare(context);
  if (!folder) return;
  const std::string footer = made_by(options, context.device);
  std::vector<std::string> files = write_plot(bench::batch_figure(context.results, footer), options.plot + "/decode_batch");
  for (const std::string& file : write_plot(bench::context_figure(context.results, footer), options.plot + "/decode_context"))
    files.push_back(file);
  folder->keep();
  for (const std::string& file : files) std::fprintf(stderr, "%s\n", file.c_str());
}

void print_report(const Options& options, bench::Context& context) {
  Json results = Json::array();
  for (const auto& result : context.results) results.push_back(to_json(result));
  Json report = report_head(context, options.commit);
  report["results"] = results;
  print_text(dump_json(report, 2) + "\n");
}

void run(const Options& options) {
  if (options.names.empty() && options.device == "cpu" && !options.compare) {
    for (const auto& one : bench::cases()) print_line(std::string(one.name) + ": " + one.summary);
    return;
  }
  const torch::Device device = parse_device(options.device, "--device");
  if (options.threads > 0) torch::set_num_threads(static_cast<int>(options.threads));
  bench::Context context;
  context.quick = context.ceilings.quick = options.quick;
  context.device = context.ceilings.device = device;
  context.model = options.model;
  if (!options.compare && !options.plot.empty()) throw UsageError("--plot goes with --compare");
  if (options.overwrite && options.plot.empty()) throw UsageError("--overwrite goes with --plot");
  if (!options.compare && !device.is_cuda() && !options.presets.empty()) throw UsageError("--preset goes with --compare or --device cuda");
  std::vector<const bench::Case*> chosen;
  if (!options.compare) chosen = chosen_cases(options.names, device);
  if (std::none_of(chosen.begin(), chosen.end(), [](const bench::Case* one) { return one->names_its_models; })) {
    for (const std::string& preset : options.presets) find_preset(preset);
  }
  context.presets = options.presets;
  if (!options.json) {
    print_line("threads " + std::to_string(torch::get_num_threads()) + ", kernels " + kernels::cpu::isa_name(kernels::cpu::isa()));
    context.report = print;
  }
  if (options.compare) compare(options, context);
  std::exception_ptr failure;  // rethrown after the earlier results have been printed
  try {
    for (const auto* one : chosen) one->run(context);
    if (context.results.empty()) throw UsageError("--preset: these benchmarks measure none of these models");
  } catch (...) {
    failure = std::current_exception();
  }
  if (options.json && !context.results.empty()) print_report(options, context);
  if (failure) std::rethrow_exception(failure);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("name", options->names, "benchmarks to run, or 'all'; without a name they are listed (on a GPU: all are run)");
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_option("--commit", options->commit, "commit to record in the JSON");
  app.add_option("--threads", options->threads, "CPU threads; 0: all cores", {0, 4096});
  app.add_option("--model", options->model,
                 "for decode, position and prefill: measure the model in this folder instead of based-360m with random weights", kPath);
  app.add_flag("--compare", options->compare,
               "for decode: compare models for several numbers of sequences and sequence lengths, on the CPU or a GPU");
  app.add_option("--preset", options->presets,
                 "measure only this model; may be given several times. For gpu_prefill, gpu_decode and gpu_train it is a preset; for "
                 "gpu_recall the beginning of names, as in --preset \"H3 d 64\"; with --compare a preset (default: based-360m and "
                 "attn-360m)");
  app.add_option("--plot", options->plot, "with --compare: also write decode_batch and decode_context, .svg and .png, to this folder",
                 kPath);
  app.add_flag("--overwrite", options->overwrite, "with --plot: replace existing pictures in the folder");
  app.add_flag("--quick", options->quick, "small sizes and few repeats: checks that the benchmarks run; the timings are not meaningful");
  app.add_flag("--json", options->json, "print JSON");
  app.offer("name", [] {
    std::vector<std::string> names = names_of(bench::cases());
    names.emplace_back("all");
    return names;
  });
  app.offer("--preset", [] { return names_of(presets()); });
  app.callback([options] { run(*options); });
  setup_bench_figures(app.add_alternative("figures", "Measure and draw every efficiency figure of the paper"));
}

}  // namespace bench_command

const Command command_bench{"bench", "Measure speed, compared with the hardware's limit; results are verified first", bench_command::setup};

}  // namespace based::apps
