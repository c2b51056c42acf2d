// The manual page, made from the program's commands.
#pragma once
#include <string>

#include "apps/command_tree.h"

namespace based::apps {

// The page in roff with the man macros: `man -l FILE` shows it.
std::string man_page(const CommandEntry& program, const std::string& program_version);

}  // namespace based::apps
