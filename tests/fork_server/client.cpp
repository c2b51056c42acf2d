// Stands in for `based` in the tests of commands: asks the fork server whose address is in BASED_FORK_SERVER to run the program with these
// arguments, streams, environment and working folder, and ends as the program does.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/fork_server/request.h"

namespace based {
namespace {

int fail(const char* step) {
  std::perror(step);
  return 127;
}

rlim_t soft_limit(__rlimit_resource resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  return limit.rlim_cur;
}

bool send_all(int socket, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t sent = ::send(socket, bytes, count, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent, count -= static_cast<size_t>(sent);
  }
  return true;
}

bool send_header(int socket, RequestHeader header) {
  const int folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  int descriptors[kForkedDescriptors] = {0, 1, 2, folder};
  for (int stream = 0; stream < 3; ++stream)
    if (header.closed[stream]) descriptors[stream] = folder;
  DescriptorSpace space{};
  iovec part{&header, sizeof header};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = space.bytes, message.msg_controllen = sizeof space.bytes;
  cmsghdr* control = CMSG_FIRSTHDR(&message);
  control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS, control->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(control), descriptors, sizeof descriptors);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof header;
}

int run(char** arguments) {
  const char* name = std::getenv("BASED_FORK_SERVER");
  if (!name) return fail("BASED_FORK_SERVER is not set");
  RequestHeader header;
  for (int stream = 0; stream < 3; ++stream) header.closed[stream] = fcntl(stream, F_GETFD) < 0;
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const SocketAddress address = abstract_address(name);
  if (connect(socket, address.get(), address.length) != 0) return fail("connect");
  std::string strings;
  for (; *arguments; ++arguments, ++header.arguments) strings.append(*arguments).push_back('\0');
  for (char** variable = environ; *variable; ++variable, ++header.variables) strings.append(*variable).push_back('\0');
  header.bytes = static_cast<uint32_t>(strings.size());
  header.mask = umask(0);
  header.file_size = soft_limit(RLIMIT_FSIZE), header.data = soft_limit(RLIMIT_DATA);
  if (!send_header(socket, header) || !send_all(socket, strings.data(), strings.size())) return fail("send");
  int status = 0;
  if (recv(socket, &status, sizeof status, MSG_WAITALL) != sizeof status) return fail("recv");
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
  return 127;
}

}  // namespace
}  // namespace based

int main(int, char** argv) { return based::run(argv); }
