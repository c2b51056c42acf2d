#include "tests/apps/program.h"

#include <sys/socket.h>

#include "tests/fork_server/request.h"

namespace based {
namespace {

// Starts the fork server, which ends with this process, and names its address in BASED_FORK_SERVER for the clients.
bool start_fork_server() {
  const std::string name = "based-tests-" + std::to_string(getpid());
  const SocketAddress address = abstract_address(name);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (listener < 0 || bind(listener, address.get(), address.length) != 0 || listen(listener, 64) != 0) return false;
  if (fork() == 0) {
    execl(BASED_FORK_SERVER_PROGRAM, BASED_FORK_SERVER_PROGRAM, std::to_string(listener).c_str(), nullptr);
    _exit(127);
  }
  close(listener);
  return setenv("BASED_FORK_SERVER", name.c_str(), 1) == 0;
}

// False if the shell limits the address space or sets OpenMP's variables, which take effect while the program is loaded, if it looks at the
// program's process ($!), or if the program starts itself again by the command line of its process (--devices).
bool may_fork(const std::string& before, const std::string& arguments) {
  return before.find("ulimit -v") == std::string::npos && before.find("OMP_") == std::string::npos &&
         arguments.find("$!") == std::string::npos && arguments.find("--devices") == std::string::npos;
}

}  // namespace

std::string program_for(const std::string& before, const std::string& arguments) {
  if (!may_fork(before, arguments)) return BASED_PROGRAM;
  static const bool started = start_fork_server();
  return started ? BASED_FORK_CLIENT_PROGRAM : BASED_PROGRAM;
}

}  // namespace based
