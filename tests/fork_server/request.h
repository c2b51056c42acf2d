// The message by which a client asks the fork server for a run of the program. A stream socket carries it: a RequestHeader together with
// the descriptors, then `bytes` bytes of strings, each with its terminating zero. The server answers with the status of waitpid, an int.
#pragma once
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace based {

constexpr int kForkedDescriptors = 4;  // standard input, output and error, and the working folder

struct RequestHeader {
  uint32_t bytes = 0, arguments = 0, variables = 0;  // the strings are the arguments, then the environment
  uint32_t mask = 0;                                 // umask
  bool closed[3] = {};                               // standard streams that are closed; the working folder is sent in their place
  rlim_t file_size = 0, data = 0;                    // RLIMIT_FSIZE and RLIMIT_DATA
};

union DescriptorSpace {
  cmsghdr alignment;
  char bytes[CMSG_SPACE(kForkedDescriptors * sizeof(int))];
};

struct SocketAddress {
  sockaddr_un value{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&value); }
};

// An address in Linux's abstract namespace, which leaves no file.
inline SocketAddress abstract_address(const std::string& name) {
  SocketAddress address;
  address.value.sun_family = AF_UNIX;
  std::memcpy(address.value.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

}  // namespace based
