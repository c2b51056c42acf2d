// The program: subcommands, exit codes (0 done, 1 failed, 2 bad usage), messages on stderr, results on stdout.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "apps/command.h"
#include "apps/failure.h"
#include "based/core/error.h"
#include "based/kernels/cpu/crowding.h"

namespace based::apps {

const char* const version = BASED_VERSION;

namespace {

const Command* const commands[] = {
#define BASED_COMMAND(name) &command_##name,
#include "apps/commands.def"
#undef BASED_COMMAND
};

int run(int argc, char** argv) {
  CLI::App app{"Based: linear attention language models with a state of fixed size"};
  app.name("based");
  app.set_version_flag("--version", std::string("based ") + version);
  app.failure_message(CLI::FailureMessage::help);
  for (const Command* command : commands) command->setup(CommandLine(app).add_subcommand(command->name, command->summary));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "based: %s\nRun `based %s--help` for its options.\n", error.what(),
                 app.get_subcommands().empty() ? "" : (app.get_subcommands().front()->get_name() + " ").c_str());
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace based::apps

int main(int argc, char** argv) {
  setenv("THP_MEM_ALLOC_ENABLE", "1", 0);  // LibTorch asks for huge pages: weights are read faster, and buffers fault 512 times less
  const based::kernels::cpu::CrowdingWatch watch;
  try {
    return based::apps::run(argc, argv);
  } catch (const based::apps::Exit& exit) {
    return exit.code;
  } catch (const based::UsageError& error) {
    std::fprintf(stderr, "based: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "based: %s\n", based::apps::failure_line(error).c_str());
    return 1;
  }
}
