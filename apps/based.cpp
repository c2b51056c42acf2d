// The program `based`: subcommands, exit codes (0 success, 1 failure, 2 wrong usage), messages on stderr, results on stdout.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "apps/command.h"
#include "apps/last_resort.h"
#include "based/core/descriptors.h"
#include "based/core/error.h"
#include "based/kernels/common/cpu/contention.h"
#include "based/models/failure.h"

namespace based::apps {

const char* const version = BASED_VERSION;

namespace {

const Command* const commands[] = {
#define BASED_COMMAND(name) &command_##name,
#include "apps/commands.def"
#undef BASED_COMMAND
};

void run(int argc, char** argv) {
  Program program("based", "Based: linear attention language models with a state of fixed size", version);
  for (const Command* command : commands) command->setup(program.commands().add_subcommand(command->name, command->summary));
  program.run(argc, argv);
}

// Runs `body`, prints the messages of its exceptions, and returns the exit code.
template <class Body>
int exit_code(const Body& body) {
  try {
    body();
    return 0;
  } catch (const Exit& exit) {
    return exit.code;
  } catch (const UsageError& error) {
    print_message(error.what());
    return 2;
  } catch (const std::exception& error) {
    print_message(failure_line(error));
    return 1;
  }
}

}  // namespace

void run_program(int argc, char** argv) {
  open_standard_descriptors();
  // A write to a closed pipe, or beyond the file size limit, then fails with an error code instead of killing the program.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  setenv("THP_MEM_ALLOC_ENABLE", "1", 0);  // LibTorch then uses huge pages: reading weights is faster, and page faults are 512 times rarer
  fit_threads_to_address_space();
  const kernels::cpu::ContentionMonitor monitor;
  const int code = exit_code([&] { run(argc, argv); });
  const int written = exit_code([] {
    if (output()) output().flush();  // also after a failed command
  });
  std::fflush(nullptr);
  // Without the destructors of LibTorch's statics: they take a third of the time of a short command, and where the program was built with
  // another libstdc++ than LibTorch they may crash.
  std::_Exit(code != 0 ? code : written);
}

}  // namespace based::apps
