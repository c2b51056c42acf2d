#include "based/eval/selftest.h"

#include "apps/command.h"
#include "based/core/json.h"

namespace based::apps {
namespace {

void run(bool json) {
  Json list = Json::array();
  const auto results = run_selftest([&](const SelfTestResult& result) {
    if (json) {
      list.push_back({{"name", result.name},
                      {"variant", result.variant},
                      {"error", result.error},
                      {"tolerance", result.tolerance},
                      {"pass", result.pass},
                      {"message", result.message}});
      return;
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", result.error);
    std::string line = std::string(result.pass ? "pass  " : "FAIL  ") + result.name;
    line.resize(std::max<size_t>(line.size() + 1, 34), ' ');
    line += result.variant;
    line.resize(std::max<size_t>(line.size() + 1, 64), ' ');
    print_line(line + (result.message.empty() ? std::string("error ") + text : result.message));
  });
  int64_t failed = 0;
  for (const auto& result : results) failed += !result.pass;
  if (json)
    print_line(dump_json({{"pass", failed == 0}, {"checks", list}}, 2));
  else
    print_line(std::to_string(results.size() - static_cast<size_t>(failed)) + " passed, " + std::to_string(failed) + " failed");
  if (failed > 0) throw Exit{1};
}

void setup(CommandLine app) {
  auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "for machines");
  app.callback([json] { run(*json); });
}

}  // namespace

const Command command_selftest{"selftest", "Check every operator and path on this machine against double precision", setup};

}  // namespace based::apps
