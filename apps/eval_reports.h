// The subcommands of `based eval` that read its results: compare and table.
#pragma once
#include "apps/command.h"

namespace based::apps {

void add_eval_reports(CommandLine eval);

}  // namespace based::apps
