// What the laws are tried with: a registered mixer's defaults at several widths, and the option sets that its author adds.
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

// Widths at which every mixer is tried beside 64: an odd one, and a large one.
inline const std::vector<int64_t> kWidths = {33, 256};

Subject make_subject(const MixerInfo& info, const std::string& name, const Options& options);

// Options with which the mixer is made at this width: the defaults where it takes them, else the first one or two integer options at
// divisors of the width or 0 that it takes; none where it takes nothing of these.
std::optional<Options> options_at(const MixerInfo& info, int64_t d_model);

// The mixer's defaults at 64, called by its name; "name_at33" and so on for those of kWidths that `more` has not and that it takes; then
// `more`, "name_set1" and so on.
std::vector<Subject> subjects_of(const MixerInfo& info, const std::vector<Options>& more);

}  // namespace based::laws
