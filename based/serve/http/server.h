// An HTTP/1.1 server: one I/O thread for all connections, and a few threads that run handlers. Requests are checked strictly: a request
// that two servers could read differently, such as one with Transfer-Encoding and Content-Length, is refused, and its connection is closed.
// Requests of one connection are answered one after another. While a reply is pending, the connection is read, so that a client that goes
// is noticed at once.
#pragma once
#include <memory>
#include <string>

#include "based/serve/http/options.h"
#include "based/serve/http/router.h"

namespace based {

class HttpServer {
 public:
  // Listens; connections are accepted from start() on. Throws UsageError for wrong options, and Error if the address is in use or a file
  // cannot be read.
  HttpServer(const HttpServerOptions& options, HttpRouter router);
  ~HttpServer();  // as stop(0)
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void start();
  // The routes of requests that arrive from now on.
  void set_router(HttpRouter router);
  // http://127.0.0.1:8080, https://…, or unix:PATH.
  std::string address() const;
  int port() const;  // 0 for a Unix socket
  int64_t connections() const;

  // Stops accepting; replies in progress may take `seconds`, then all connections are closed. Idle connections are closed at once.
  void stop(double seconds);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace based
