#include "apps/command.h"
#include "apps/man_page.h"

namespace based::apps {
namespace man_command {

void setup(CommandLine app) {
  app.callback([app] { print_text(man_page(app.program_tree(), version)); });
}

}  // namespace man_command

const Command command_man{"man", "Print the manual page, in roff", man_command::setup};

}  // namespace based::apps
