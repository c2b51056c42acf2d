// The parts of a server that all its connections share. Included by the transport's sources only.
#pragma once
#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "based/serve/http/api_keys.h"
#include "based/serve/http/options.h"
#include "based/serve/http/router.h"

namespace based {

// A connection as the server knows it. The functions are called on the I/O thread.
class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void start() = 0;
  virtual void close() = 0;
  virtual void close_if_idle() = 0;
};

struct ServerContext {
  ServerContext(const HttpServerOptions& given, HttpRouter routes)
      : options(given),
        router(std::make_shared<const HttpRouter>(std::move(routes))),
        handlers(static_cast<size_t>(given.handler_threads)) {}

  const HttpServerOptions options;
  std::shared_ptr<const HttpRouter> router;  // used by the I/O thread; requests that are being handled keep theirs
  ApiKeys keys;
  std::optional<boost::asio::ssl::context> tls;
  boost::asio::io_context io{1};
  boost::asio::thread_pool handlers;
  std::atomic<int64_t> pending_handlers{0}, body_bytes{0}, connection_count{0};
  std::atomic<bool> stopping{false};                                                 // no connection is kept open for another request
  std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections;  // used by the I/O thread only
};

using GenericSocket = boost::asio::generic::stream_protocol::socket;

// A connection over an accepted socket, with TLS if the context has it. `remote`: the client's address, for logs.
std::shared_ptr<HttpConnection> make_connection(const std::shared_ptr<ServerContext>& context, GenericSocket socket,
                                                const std::string& remote);

}  // namespace based
