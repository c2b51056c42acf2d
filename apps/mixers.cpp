#include "apps/command.h"
#include "based/core/json.h"
#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/shapes_only.h"

namespace based::apps {
namespace mixers_command {

struct Options {
  int64_t d_model = 64, tokens = 1024;
  std::vector<std::string> set;
  bool json = false;
};

struct Row {
  int64_t parameters = 0, state_bytes = 0;
  Formula formula;
  bool grows = false;
};

// Whether `key` names this option or a key of its table.
bool names_option(const std::string& key, const FieldHelp& option) {
  return key == option.name || (option.type == "table" && key.starts_with(option.name + "."));
}

Row measure(const MixerInfo& info, const Options& options) {
  const ShapesOnly no_memory;
  Config config{Config::Table{}};
  for (const auto& assignment : options.set) {
    // Options that this mixer does not have are for other mixers of the list.
    const std::string key = assignment.substr(0, assignment.find('='));
    for (const auto& field : info.help())
      if (names_option(key, field)) config.override_with(assignment);
  }
  const auto mixer = info.make(config, {options.d_model, 0, 1});
  Row row;
  for (const auto& parameter : mixer->parameters()) row.parameters += parameter.numel();
  row.state_bytes = state_bytes(*mixer, options.tokens);
  row.formula = mixer->state_formula(options.tokens);
  row.grows = state_bytes(*mixer, 0) < row.state_bytes;
  return row;
}

void check_known(const Options& options) {
  std::vector<FieldHelp> known;
  std::vector<std::string> names;
  for (const auto& info : mixers())
    for (const auto& field : info.help()) known.push_back(field), names.push_back(field.name);
  for (const auto& assignment : options.set) {
    const std::string key = assignment.substr(0, assignment.find('='));
    if (std::any_of(known.begin(), known.end(), [&](const FieldHelp& option) { return names_option(key, option); })) continue;
    const std::string close = nearest(key, names);
    throw UsageError("--set " + assignment + ": no mixer has an option '" + key + "'" +
                     (close.empty() ? "" : "; did you mean '" + close + "'?"));
  }
}

Json as_json(const std::vector<FieldHelp>& options) {
  Json fields = Json::array();
  for (const auto& field : options)
    fields.push_back({{"name", field.name}, {"type", field.type}, {"default", field.default_value}, {"help", field.help}});
  return fields;
}

void print_options(const std::vector<FieldHelp>& options) {
  for (const auto& field : options) print_line(padded("    " + field.name + " = " + field.default_value, 30) + "  " + field.help);
}

void run(const Options& options) {
  check_known(options);
  Json list = Json::array();
  for (const auto& info : mixers()) {
    const Row row = measure(info, options);
    if (options.json) {
      list.push_back({{"name", info.name},
                      {"summary", info.summary},
                      {"parameters", row.parameters},
                      {"recurrent", info.recurrent},
                      {"state_bytes", row.state_bytes},
                      {"state_formula", row.formula.is_none() ? Json(nullptr) : Json(row.formula.text())},
                      {"state_formula_bytes", row.formula.is_none() ? Json(nullptr) : Json(row.formula.value())},
                      {"state_grows", row.grows},
                      {"options", as_json(info.help())}});
      continue;
    }
    print_line(std::string(info.name) + ": " + info.summary);
    print_line("  " + grouped(row.parameters) + " parameters, " + (info.recurrent ? "state " : "no recurrent form; decoding would need ") +
               grouped(row.state_bytes) + " bytes after " + grouped(options.tokens) + " tokens" + (row.grows ? ", growing" : "") +
               "  (d_model " + std::to_string(options.d_model) + ")");
    if (!row.formula.is_none()) print_line("  by formula " + grouped(row.formula.value()) + " bytes: " + row.formula.text());
    print_options(info.help());
  }
  Json maps = Json::array();
  if (!options.json) print_line("feature maps of linear_attention, with their keys in feature_options");
  for (const auto& map : feature_maps()) {
    if (options.json) {
      maps.push_back({{"name", map.name}, {"summary", map.summary}, {"options", as_json(map.help())}});
      continue;
    }
    print_line(std::string(map.name) + ": " + map.summary);
    print_options(map.help());
  }
  if (options.json)
    print_line(dump_json({{"d_model", options.d_model}, {"tokens", options.tokens}, {"mixers", list}, {"feature_maps", maps}}));
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_option("--d-model", options->d_model, "model width for which parameters and state are counted", {1, 1 << 16});
  app.add_option("--tokens", options->tokens, "sequence length for which growing states are counted", {1, int64_t{1} << 40});
  app.add_option("--set", options->set, "option=value for all mixers that have the option, for example feature_dim=8");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { run(*options); });
}

}  // namespace mixers_command

const Command command_mixers{"mixers", "List every registered mixer: options, parameters, bytes of state as measured and by formula",
                             mixers_command::setup};

}  // namespace based::apps
