#include "based/serve/http/server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "based/core/error.h"
#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/serve/http/server_context.h"

namespace based {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Local = net::local::stream_protocol;
using Tcp = net::ip::tcp;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // after a failed accept, for example without free file descriptors

void load_certificate(net::ssl::context& tls, const HttpServerOptions& options) {
  error_code error;
  tls.set_options(net::ssl::context::default_workarounds | net::ssl::context::no_sslv2 | net::ssl::context::no_sslv3 |
                  net::ssl::context::no_tlsv1 | net::ssl::context::no_tlsv1_1);
  tls.use_certificate_chain_file(options.tls_certificate, error);
  if (error) throw Error(options.tls_certificate + ": is not a readable PEM certificate (" + error.message() + ")");
  tls.use_private_key_file(options.tls_key, net::ssl::context::pem, error);
  if (error) throw Error(options.tls_key + ": is not the readable PEM private key of the certificate (" + error.message() + ")");
}

// Removes the socket of a server that has ended without removing it. Throws Error if something else is at the path.
void remove_stale_socket(net::io_context& io, const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode)) throw Error(path + ": exists and is no socket; --unix needs a free path");
  Local::socket probe(io);
  error_code error;
  probe.connect(Local::endpoint(path), error);
  if (!error) throw Error(path + ": another server is listening on this socket");
  ::unlink(path.c_str());
}

}  // namespace

struct HttpServer::State {
  State(const HttpServerOptions& options, HttpRouter router)
      : context(std::make_shared<ServerContext>(options, std::move(router))), tcp(context->io), local(context->io), pause(context->io) {}

  void listen();
  void listen_tcp();
  void listen_local();
  template <class Acceptor>
  void accept(Acceptor& acceptor);
  void accepted(GenericSocket socket, const std::string& remote);
  void close_acceptors();

  std::shared_ptr<ServerContext> context;
  Tcp::acceptor tcp;
  Local::acceptor local;
  net::steady_timer pause;
  std::optional<net::executor_work_guard<net::io_context::executor_type>> work;
  std::thread thread;
  std::string address;
  int port = 0;
  bool stopped = false;
};

void HttpServer::State::listen_tcp() {
  const HttpServerOptions& options = context->options;
  error_code error;
  const auto ip = net::ip::make_address(options.address, error);
  if (error) throw UsageError("--address must be an IP address, such as 127.0.0.1 or ::1, got '" + options.address + "'");
  const Tcp::endpoint endpoint(ip, static_cast<uint16_t>(options.port));
  const std::string name = (ip.is_v6() ? "[" + options.address + "]" : options.address) + ":" + std::to_string(options.port);
  tcp.open(endpoint.protocol(), error);
  if (!error) tcp.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) tcp.bind(endpoint, error);
  if (!error) tcp.listen(net::socket_base::max_listen_connections, error);
  if (error == net::error::address_in_use) throw Error(name + ": the address is in use; choose another --port, or 0 for a free one");
  if (error) throw Error(name + ": cannot listen there: " + error.message());
  port = tcp.local_endpoint().port();
  address = std::string(context->tls ? "https" : "http") + "://" + (ip.is_v6() ? "[" + options.address + "]" : options.address) + ":" +
            std::to_string(port);
}

void HttpServer::State::listen_local() {
  const std::string& path = context->options.unix_path;
  if (path.size() > 107) throw UsageError("--unix: a socket's path has at most 107 bytes, " + path + " has " + std::to_string(path.size()));
  remove_stale_socket(context->io, path);
  error_code error;
  local.open(Local(), error);
  if (!error) local.bind(Local::endpoint(path), error);
  if (!error) local.listen(net::socket_base::max_listen_connections, error);
  if (error) throw Error(path + ": cannot listen there: " + error.message());
  address = "unix:" + path;
}

void HttpServer::State::accepted(GenericSocket socket, const std::string& remote) {
  if (context->connection_count >= context->options.max_connections || context->stopping) return;  // the socket closes here
  ++context->connection_count;
  const auto connection = make_connection(context, std::move(socket), remote);
  context->connections.emplace(connection.get(), connection);
  connection->start();
}

template <class Acceptor>
void HttpServer::State::accept(Acceptor& acceptor) {
  acceptor.async_accept([this, &acceptor](const error_code& error, auto socket) {
    if (!acceptor.is_open()) return;
    if (error) {
      pause.expires_after(kAcceptPause);
      pause.async_wait([this, &acceptor](const error_code& cancelled) {
        if (!cancelled && acceptor.is_open()) accept(acceptor);
      });
      return;
    }
    std::string remote = "unix";
    if constexpr (std::is_same_v<Acceptor, Tcp::acceptor>) {
      error_code ignored;
      socket.set_option(Tcp::no_delay(true), ignored);
      const auto endpoint = socket.remote_endpoint(ignored);
      remote = endpoint.address().to_string();
    }
    accepted(GenericSocket(std::move(socket)), remote);
    accept(acceptor);
  });
}

void HttpServer::State::close_acceptors() {
  error_code ignored;
  if (local.is_open()) ::unlink(context->options.unix_path.c_str());
  tcp.close(ignored);
  local.close(ignored);
  pause.cancel();
}

HttpServer::HttpServer(const HttpServerOptions& options, HttpRouter router) {
  check_http_options(options);
  state_ = std::make_unique<State>(options, std::move(router));
  if (!options.api_keys.empty()) state_->context->keys = ApiKeys(options.api_keys);
  if (!options.tls_certificate.empty()) {
    state_->context->tls.emplace(net::ssl::context::tls_server);
    load_certificate(*state_->context->tls, options);
  }
  options.unix_path.empty() ? state_->listen_tcp() : state_->listen_local();
}

HttpServer::~HttpServer() { stop(0); }

void HttpServer::start() {
  State& state = *state_;
  state.work.emplace(state.context->io.get_executor());
  if (state.tcp.is_open()) state.accept(state.tcp);
  if (state.local.is_open()) state.accept(state.local);
  state.thread = std::thread([context = state.context] {
    name_profile_thread("http");
    while (true) {
      try {
        context->io.run();
        return;
      } catch (const std::exception& error) {
        log_error(std::string("server: ") + error.what());
      }
    }
  });
}

void HttpServer::set_router(HttpRouter router) {
  net::post(state_->context->io, [context = state_->context, router = std::make_shared<const HttpRouter>(std::move(router))]() mutable {
    context->router = std::move(router);
  });
}

std::string HttpServer::address() const { return state_->address; }
int HttpServer::port() const { return state_->port; }
int64_t HttpServer::connections() const { return state_->context->connection_count; }

void HttpServer::stop(double seconds) {
  State& state = *state_;
  if (std::exchange(state.stopped, true)) return;
  ServerContext& context = *state.context;
  if (!state.thread.joinable()) return state.close_acceptors();
  context.stopping = true;
  net::post(context.io, [&state, &context] {
    state.close_acceptors();
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (const auto& [key, connection] : context.connections) all.push_back(connection);
    for (const auto& connection : all) connection->close_if_idle();
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (context.connection_count > 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  net::post(context.io, [&state, &context] {
    std::vector<std::shared_ptr<HttpConnection>> all;
    for (const auto& [key, connection] : context.connections) all.push_back(connection);
    for (const auto& connection : all) connection->close();
    state.work.reset();
  });
  state.thread.join();
  context.handlers.join();
  context.io.restart();
  context.io.poll();  // handlers that have ended since may have posted bytes, which keep their connections
}

}  // namespace based
