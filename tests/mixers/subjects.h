// The subjects of the laws: a registered mixer with its defaults at several widths, and with the option sets that its author adds.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tests/mixers/laws.h"

namespace based::laws {

struct Options {
  int64_t d_model;
  std::string toml;
};

// The widths at which every mixer is tried in addition to 64: an odd one and a large one.
inline const std::vector<int64_t> kWidths = {33, 256};

Subject make_subject(const MixerInfo& info, const std::string& name, const Options& options);

// Options that the mixer accepts at this width: its defaults if possible, otherwise the first one or two integer options set to a divisor
// of the width or 0. nullopt if it accepts none of these.
std::optional<Options> options_at(const MixerInfo& info, int64_t d_model);

// The mixer's defaults at 64, with the mixer's name; then "name_at33" and so on for those of kWidths that are not in `more` and that have
// options_at(); then the options of `more` as "name_set1" and so on.
std::vector<Subject> subjects_of(const MixerInfo& info, const std::vector<Options>& more);

}  // namespace based::laws
