#include "apps/command.h"
#include "apps/completion_scripts.h"

namespace based::apps {
namespace completion_command {

void run(const std::string& shell, const CommandEntry& program) {
  if (shell == "bash") return print_text(bash_completion(program));
  if (shell == "zsh") return print_text(zsh_completion(program));
  if (shell == "fish") return print_text(fish_completion(program));
  throw UsageError("shell must be bash, zsh or fish, got " + in_quotes(shell));
}

void setup(CommandLine app) {
  const auto shell = std::make_shared<std::string>();
  app.add_required("shell", *shell, "bash, zsh or fish");
  app.offer("shell", {"bash", "zsh", "fish"});
  app.callback([app, shell] { run(*shell, app.program_tree()); });
}

}  // namespace completion_command

const Command command_completion{"completion", "Print the script that completes this program's arguments in a shell",
                                 completion_command::setup};

}  // namespace based::apps
