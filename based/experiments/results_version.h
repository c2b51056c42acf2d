// Which code made a result, so that figures of other code are not taken for its own.
#pragma once

namespace based {

// 16 hex digits: a hash over the sources that decide what a run measures on the CPU (recall data, kernels, operators, mixers, models,
// training, sweeps) and the version of LibTorch. Made while building by cmake/ResultsVersion.cmake; equal for equal sources everywhere.
extern const char* const results_version;

}  // namespace based
