#include "tests/mixers/subjects.h"

#include <algorithm>

#include "based/core/config.h"
#include "based/core/error.h"
#include "based/mixers/kit/shapes_only.h"

namespace based::laws {
namespace {

bool takes(const MixerInfo& info, const Options& options) {
  const ShapesOnly no_memory;
  try {
    info.make(Config::parse_toml(options.toml, "test"), {options.d_model, /*layer=*/0, /*layers=*/2});
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

// "option = value" for every integer option: proper divisors of the width first, then 1, the width and 0.
std::vector<std::vector<std::string>> settings(const MixerInfo& info, int64_t d_model) {
  std::vector<int64_t> values;
  for (int64_t value = 2; value < d_model; ++value)
    if (d_model % value == 0) values.push_back(value);
  for (const int64_t trivial : {int64_t{1}, d_model, int64_t{0}}) values.push_back(trivial);
  std::vector<std::vector<std::string>> all;
  for (const FieldHelp& field : info.help()) {
    if (field.type != "integer") continue;
    all.emplace_back();
    for (const int64_t value : values) all.back().push_back(field.name + " = " + std::to_string(value));
  }
  return all;
}

}  // namespace

Subject make_subject(const MixerInfo& info, const std::string& name, const Options& options) {
  return {name,
          options.d_model,
          options.toml,
          [info, options] {
            return info.make(Config::parse_toml(options.toml, "test"), {options.d_model, /*layer=*/0, /*layers=*/2}); },
          torch::kCPU,
          info.recurrent};
}

std::optional<Options> options_at(const MixerInfo& info, int64_t d_model) {
  if (takes(info, {d_model, ""})) return Options{d_model, ""};
  const auto all = settings(info, d_model);
  for (const auto& option : all)
    for (const std::string& setting : option)
      if (takes(info, {d_model, setting})) return Options{d_model, setting};
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b)
      for (const std::string& first : all[a])
        for (const std::string& second : all[b])
          if (takes(info, {d_model, first + "\n" + second})) return Options{d_model, first + "\n" + second};
  return std::nullopt;
}

std::vector<Subject> subjects_of(const MixerInfo& info, const std::vector<Options>& more) {
  std::vector<Subject> all = {make_subject(info, info.name, {64, ""})};
  for (const int64_t width : kWidths) {
    const bool known = std::any_of(more.begin(), more.end(), [width](const Options& options) { return options.d_model == width; });
    if (known) continue;
    if (const auto options = options_at(info, width))
      all.push_back(make_subject(info, info.name + ("_at" + std::to_string(width)), *options));
  }
  for (size_t i = 0; i < more.size(); ++i) all.push_back(make_subject(info, info.name + ("_set" + std::to_string(i + 1)), more[i]));
  return all;
}

}  // namespace based::laws
