#include "apps/command.h"
#include "based/core/json.h"
#include "based/models/language_model.h"

namespace based::apps {
namespace {

void run(bool json, const std::string& name) {
  if (!name.empty()) {
    print_text(write_config(find_preset(name)).to_json() + "\n");
    return;
  }
  Json list = Json::array();
  for (const auto& preset : presets()) {
    const int64_t parameters = parameter_count(preset.config);
    const int64_t layers = static_cast<int64_t>(preset.config.layers.size());
    if (json) {
      list.push_back({{"name", preset.name},
                      {"parameters", parameters},
                      {"d_model", preset.config.d_model},
                      {"layers", layers},
                      {"vocab_size", preset.config.vocab_size},
                      {"summary", preset.summary}});
      continue;
    }
    print_line(padded(preset.name, 13) + " " + padded_left(grouped(parameters), 13) + " parameters  " + preset.summary);
  }
  if (json) print_line(dump_json({{"presets", list}}));
}

void setup(CommandLine app) {
  auto json = std::make_shared<bool>(false);
  auto name = std::make_shared<std::string>();
  app.add_option("name", *name, "print this preset's config.json");
  app.add_flag("--json", *json, "for machines");
  app.callback([json, name] { run(*json, *name); });
}

}  // namespace

const Command command_presets{"presets", "List the model presets with their exact parameter counts", setup};

}  // namespace based::apps
