// Compares decoding of several models: tokens/s and memory for several numbers of sequences and sequence lengths, with the same engine.
#pragma once
#include "based/core/plot.h"
#include "bench/case.h"

namespace based::bench {

// Measures all Context::presets at each size. A result's `more` has batch, context, ms, state_bytes (of all sequences) and weight_bytes. If
// a size does not fit into the GPU's memory, its value and `fits` are 0.
void compare_decode(Context& context);

// The printed table: its head lines, and a line with the models' results at one size.
std::vector<std::string> comparison_heads(const std::vector<std::string>& models);
std::string comparison_line(const std::vector<Result>& models);

// Figures of the results: tokens/s against the number of sequences, and against their length. `footer` names the device.
Plot batch_figure(const std::vector<Result>& results, const std::string& footer);
Plot context_figure(const std::vector<Result>& results, const std::string& footer);

}  // namespace based::bench
