#include "based/eval/selftest.h"

#include "apps/command.h"
#include "based/core/json.h"
#include "based/models/device.h"

namespace based::apps {
namespace selftest_command {

struct Options {
  std::string device = "cpu";
  bool json = false;
};

void run(const Options& options) {
  const bool json = options.json;
  const torch::Device device = parse_device(options.device, "--device");
  Json list = Json::array();
  const auto results = run_selftest(device, [&](const SelfTestResult& result) {
    if (json) {
      list.push_back({{"name", result.name},
                      {"variant", result.variant},
                      {"error", result.error},
                      {"tolerance", result.tolerance},
                      {"pass", result.pass},
                      {"message", result.message}});
      return;
    }
    std::string line = padded(std::string(result.pass ? "pass  " : "FAIL  ") + result.name, 33) + " ";
    line = padded(line + result.variant, 63) + " ";
    print_line(line + (result.message.empty() ? "error " + scientific(result.error) : result.message));
  });
  int64_t failed = 0;
  for (const auto& result : results) failed += !result.pass;
  if (json)
    print_text(dump_json({{"pass", failed == 0}, {"device", device.str()}, {"checks", list}}, 2) + "\n");
  else
    print_line(std::to_string(results.size() - static_cast<size_t>(failed)) + " passed, " + std::to_string(failed) + " failed");
  if (failed > 0) throw Exit{1};
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
