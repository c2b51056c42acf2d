// The program `based` with a fork server. Loading LibTorch takes 0.3 s of a process, more than most runs of the tests. This process loads
// it once, and each run is a fork that calls the program's main function. No thread has been started before a fork.
//
//   based_fork_server SOCKET    listens on the descriptor SOCKET until the parent process ends
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "apps/command.h"
#include "tests/fork_server/request.h"

namespace based {
namespace {

struct Request {
  RequestHeader header;
  int descriptors[kForkedDescriptors] = {};
  std::string strings;
};

bool receive(int socket, Request& request) {
  DescriptorSpace space{};
  iovec part{&request.header, sizeof request.header};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = space.bytes, message.msg_controllen = sizeof space.bytes;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof request.header) return false;
  const cmsghdr* control = CMSG_FIRSTHDR(&message);
  if (!control || control->cmsg_len != CMSG_LEN(sizeof request.descriptors)) return false;
  std::memcpy(request.descriptors, CMSG_DATA(control), sizeof request.descriptors);
  request.strings.resize(request.header.bytes);
  return recv(socket, request.strings.data(), request.strings.size(), MSG_WAITALL) == static_cast<ssize_t>(request.strings.size());
}

void set_soft_limit(__rlimit_resource resource, rlim_t value) {
  rlimit limit{};
  getrlimit(resource, &limit);
  limit.rlim_cur = value;
  setrlimit(resource, &limit);
}

// Becomes the program.
[[noreturn]] void become(Request& request) {
  for (int stream = 0; stream < 3; ++stream) {
    if (request.header.closed[stream])
      close(stream);
    else
      dup2(request.descriptors[stream], stream);
  }
  if (fchdir(request.descriptors[3]) != 0) _exit(127);
  for (const int descriptor : request.descriptors) close(descriptor);
  umask(request.header.mask);
  set_soft_limit(RLIMIT_FSIZE, request.header.file_size);
  set_soft_limit(RLIMIT_DATA, request.header.data);
  std::vector<char*> arguments;
  arguments.reserve(request.header.arguments + 1);
  char* string = request.strings.data();
  for (uint32_t i = 0; i < request.header.arguments; ++i, string += std::strlen(string) + 1) arguments.push_back(string);
  arguments.push_back(nullptr);
  clearenv();
  for (uint32_t i = 0; i < request.header.variables; ++i, string += std::strlen(string) + 1) putenv(string);
  apps::run_program(static_cast<int>(request.header.arguments), arguments.data());
}

// Runs one request in a process of its own, which is killed if the client goes away.
[[noreturn]] void serve(int socket) {
  std::signal(SIGCHLD, SIG_DFL);
  Request request;
  if (!receive(socket, request)) _exit(1);
  const pid_t child = fork();
  if (child == 0) {
    close(socket);
    become(request);
  }
  for (const int descriptor : request.descriptors) close(descriptor);
  pollfd events[2] = {{static_cast<int>(syscall(SYS_pidfd_open, child, 0)), POLLIN, 0}, {socket, POLLIN, 0}};
  while (poll(events, 2, -1) < 0) {}
  if (!events[0].revents) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  send(socket, &status, sizeof status, MSG_NOSIGNAL);
  _exit(0);
}

[[noreturn]] void serve_forks(int listener) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGCHLD, SIG_IGN);  // processes that serve a request leave no zombie
  while (true) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (socket < 0) _exit(1);
    if (fork() == 0) {
      close(listener);
      serve(socket);
    }
    close(socket);
  }
}

}  // namespace
}  // namespace based

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  based::serve_forks(std::atoi(argv[1]));
}
