#include "bench/case.h"

#include "apps/command.h"
#include "based/core/config.h"
#include "based/core/json.h"
#include "based/kernels/cpu/isa.h"

namespace based::apps {
namespace {

struct Options {
  std::vector<std::string> names;
  std::string model;
  int threads = 0;
  bool quick = false, json = false;
};

const bench::Case& find_case(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& one : bench::cases()) {
    if (one.name == name) return one;
    names.emplace_back(one.name);
  }
  const std::string close = nearest(name, names);
  throw UsageError("no benchmark '" + name + "'" + (close.empty() ? "" : "; did you mean '" + close + "'?") +
                   " `based bench` without a name lists them");
}

Json to_json(const bench::Result& result) {
  Json json{{"name", result.name},   {"shape", result.shape}, {"value", result.value},
            {"unit", result.unit},   {"floor", result.floor}, {"floor_fraction", result.floor_fraction},
            {"bound", result.bound}, {"error", result.error}};
  for (const auto& [name, value] : result.more) json[name] = value;
  return json;
}

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

void print(const bench::Result& result) {
  std::string line = padded(result.name + ", " + result.shape, 65) + " ";
  line += format_number(result.value, result.value < 10 ? 3 : 1) + " " + result.unit + "   " +
          format_number(100 * result.floor_fraction, 0) + " % of floor " + format_number(result.floor, result.floor < 10 ? 3 : 1) + " (" +
          result.bound + "), error " + scientific(result.error);
  for (const auto& [name, value] : result.more) line += ", " + name + " " + format_number(value, 3);
  print_line(line);
}

void run(const Options& options) {
  if (options.names.empty()) {
    for (const auto& one : bench::cases()) print_line(std::string(one.name) + ": " + one.summary);
    return;
  }
  if (options.threads < 0) throw UsageError("--threads must be at least 1");
  if (options.threads > 0) torch::set_num_threads(options.threads);
  bench::Context context;
  context.quick = options.quick;
  context.model = options.model;
  std::vector<const bench::Case*> chosen;
  for (const auto& name : options.names) {
    if (name == "all")
      for (const auto& one : bench::cases()) chosen.push_back(&one);
    else
      chosen.push_back(&find_case(name));
  }
  if (!options.json) {
    print_line("threads " + std::to_string(torch::get_num_threads()) + ", kernels " + kernels::cpu::isa_name(kernels::cpu::isa()));
    context.report = print;
  }
  for (const auto* one : chosen) one->run(context);
  if (!options.json) return;
  Json results = Json::array();
  for (const auto& result : context.results) results.push_back(to_json(result));
  print_line(dump_json({{"version", version},
                        {"threads", torch::get_num_threads()},
                        {"kernels", kernels::cpu::isa_name(kernels::cpu::isa())},
                        {"read_gb_s", context.ceilings.read_gb_s()},
                        {"gemm_fp32_gflops", context.ceilings.gemm_gflops(torch::kFloat)},
                        {"gemm_bf16_gflops", context.ceilings.gemm_gflops(torch::kBFloat16)},
                        {"results", results}},
                       2));
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("name", options->names, "cases to run, or all; none: list them");
  app.add_option("--threads", options->threads, "CPU threads; 0: all cores");
  app.add_option("--model", options->model, "decode, position and prefill: a model's folder instead of based-360m with random weights");
  app.add_flag("--quick", options->quick, "small sizes and few repeats: shows that it runs, not how fast");
  app.add_flag("--json", options->json, "for machines");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_bench{"bench", "Measure speed beside its floor; verifies first", setup};

}  // namespace based::apps
