#include "based/eval/selftest.h"

#include "apps/command.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/models/device.h"

namespace based::apps {
namespace selftest_command {

struct Options {
  std::string device = "cpu";
  bool json = false;
};

std::string describe(const GpuKernels& gpu) {
  return gpu.card + ": " + (gpu.hopper_code ? "Hopper's kernels" : "the kernels of all GPUs") + ", at most " +
         std::to_string(gpu.block_shared_bytes / 1024) + " KB of shared memory for each block, " +
         (gpu.compiles_at_start ? "compiled from PTX by the driver" : "compiled for this GPU");
}

void print_result(const SelfTestResult& result) {
  std::string line = padded(std::string(result.pass ? "pass  " : "FAIL  ") + result.name, 33) + " ";
  line = padded(line + result.variant, 63) + " ";
  print_line(line + (result.message.empty() ? "error " + scientific(result.error) : result.message));
}

Json to_json(const SelfTestResult& result) {
  return {{"name", result.name},           {"variant", result.variant}, {"error", result.error},
          {"tolerance", result.tolerance}, {"pass", result.pass},       {"message", result.message}};
}

void run(const Options& options) {
  const torch::Device device = parse_device(options.device, "--device");
  const std::optional<GpuKernels> gpu = gpu_kernels_of(device);
  if (gpu && !options.json) print_line(describe(*gpu));
  Json list = Json::array();
  const SelfTestSummary summary = run_selftest(device, [&](const SelfTestResult& result) {
    if (options.json)
      list.push_back(to_json(result));
    else
      print_result(result);
  });
  if (options.json) {
    Json json = {{"pass", summary.failed == 0}, {"device", device.str()}, {"checks", list}};
    if (gpu)
      json["gpu"] = {{"card", gpu->card},
                     {"hopper_code", gpu->hopper_code},
                     {"block_shared_bytes", gpu->block_shared_bytes},
                     {"compiles_at_start", gpu->compiles_at_start},
                     {"compile_seconds", summary.compile_seconds}};
    print_text(dump_json(json, 2) + "\n");
  } else {
    if (gpu && gpu->compiles_at_start) print_line("the driver compiled for " + format_duration(summary.compile_seconds));
    print_line(std::to_string(summary.passed) + " passed, " + std::to_string(summary.failed) + " failed");
  }
  if (summary.failed > 0) throw Exit{1};
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("--device", options->device, "cpu, cuda or cuda:N");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { run(*options); });
}

}  // namespace selftest_command

const Command command_selftest{"selftest", "Check every operator and code path on this machine against double precision",
                               selftest_command::setup};

}  // namespace based::apps
