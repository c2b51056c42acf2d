// Scripts that complete commands, options, values and files, made from the program's commands.
#pragma once
#include <string>

#include "apps/command_tree.h"

namespace based::apps {

// Each is sourced by its shell or put where the shell finds completions: a program's script of bash below
// share/bash-completion/completions, of zsh below a folder of $fpath as _NAME, of fish below share/fish/vendor_completions.d.
std::string bash_completion(const CommandEntry& program);
std::string zsh_completion(const CommandEntry& program);
std::string fish_completion(const CommandEntry& program);

}  // namespace based::apps
