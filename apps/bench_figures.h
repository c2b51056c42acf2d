// `based bench figures`.
#pragma once
#include "apps/command_line.h"

namespace based::apps {

void setup_bench_figures(CommandLine app);

}  // namespace based::apps
