// Decoding by several models side by side: tokens/s and memory against the number of sequences and their length, all through one engine.
#pragma once
#include "based/core/plot.h"
#include "bench/case.h"

namespace based::bench {

// Context::presets in turn at each size; a result's `more` holds batch, context, ms, state_bytes (of all sequences) and weight_bytes. A
// size that does not fit into the GPU's memory has the value 0 and `fits` 0.
void compare_decode(Context& context);

// The table that a person reads: its heads, and a line for the models' results at one size.
std::vector<std::string> comparison_heads(const std::vector<std::string>& models);
std::string comparison_line(const std::vector<Result>& models);

// The same results as pictures: tokens/s against the number of sequences, and against their length. `footer` says where they were measured.
Plot batch_figure(const std::vector<Result>& results, const std::string& footer);
Plot context_figure(const std::vector<Result>& results, const std::string& footer);

}  // namespace based::bench
