// A client that sends any bytes to a server of this process.
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "based/core/error.h"

namespace based {

class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) throw Error("the test cannot connect");
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { close(); }

  // False once the server has closed the connection.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Reads until `end` has arrived, the server closes the connection, or 10 s have passed. Returns all bytes since the last call.
  std::string receive_until(std::string_view end) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (received_.find(end) == std::string::npos && std::chrono::steady_clock::now() < limit) {
      pollfd ready{socket_, POLLIN, 0};
      if (::poll(&ready, 1, 100) <= 0) continue;
      std::array<char, 65536> bytes{};
      const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
      if (count <= 0) {
        closed_ = true;
        break;
      }
      received_.append(bytes.data(), static_cast<size_t>(count));
    }
    return std::exchange(received_, {});
  }
  // Everything until the server closes the connection.
  std::string receive_all() { return receive_until(std::string(64, '\1')); }
  bool closed() const { return closed_; }  // by the server, as the last receive noticed

  // A reply with a Content-Length.
  std::string receive_reply() {
    std::string reply = receive_until("\r\n\r\n");
    const size_t header = reply.find("\r\n\r\n"), field = reply.find("Content-Length: ");
    if (header == std::string::npos || field == std::string::npos) return reply;
    const size_t whole = header + 4 + std::stoul(reply.substr(field + 16));
    while (reply.size() < whole && !closed_) {
      received_ = std::exchange(reply, {});
      const size_t before = received_.size();
      reply = receive_more(before);
    }
    received_ = reply.substr(std::min(whole, reply.size()));
    return reply.substr(0, whole);
  }

  void half_close() const { ::shutdown(socket_, SHUT_WR); }
  void reset() {  // the peer receives RST
    const linger now{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    close();
  }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  std::string receive_more(size_t before) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (received_.size() == before && !closed_ && std::chrono::steady_clock::now() < limit) {
      std::array<char, 65536> bytes{};
      const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
      if (count <= 0)
        closed_ = true;
      else
        received_.append(bytes.data(), static_cast<size_t>(count));
    }
    return std::exchange(received_, {});
  }

  int socket_ = -1;
  bool closed_ = false;
  std::string received_;
};

}  // namespace based
