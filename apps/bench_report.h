// The head of the reports of `based bench`: version, commit, date and machine.
#pragma once
#include <string>

#include "based/core/json.h"
#include "bench/case.h"

namespace based::apps {

std::string today();  // UTC, 2026-11-23

// Name, driver and clocks from nvidia-smi, so that a result shows which GPU it was measured on.
Json gpu_description(torch::Device device);
// "NVIDIA H200", or "CPU, 2 threads, avx512".
std::string device_in_words(torch::Device device);
// Version, commit, date and machine, with the ceilings of this run.
Json report_head(bench::Context& context, const std::string& commit);

}  // namespace based::apps
