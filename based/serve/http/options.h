// The address of an HTTP server and its limits. Each field is a flag of `based serve`.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace based {

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  int64_t port = 8080;  // 0: the system chooses a free one (HttpServer::address)
  std::string unix_path;
  std::string tls_certificate, tls_key;
  std::string api_keys;  // a file (http/api_keys.h); empty: no request needs a key
  std::vector<std::string> cors;

  int64_t max_body_bytes = int64_t{8} << 20;
  int64_t max_total_body_bytes = int64_t{512} << 20;
  int64_t max_header_bytes = 16 << 10;
  int64_t max_connections = 4096;
  int64_t max_write_queue_bytes = int64_t{4} << 20;
  int64_t handler_threads = 2;
  int64_t max_pending_handlers = 1024;
  double header_seconds = 10;
  double body_seconds = 60;
  double idle_seconds = 75;
  double write_seconds = 30;
  double ping_seconds = 15;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("address", address, "the IP address to listen on; 0.0.0.0 for all interfaces");
    field("port", port, "the TCP port; 0: the system chooses a free one");
    field("unix", unix_path, "listen on this Unix socket instead of a TCP port");
    field("tls_certificate", tls_certificate, "a PEM file with the certificate chain: serve HTTPS");
    field("tls_key", tls_key, "the PEM file with the private key of --tls-certificate");
    field("api_keys", api_keys, "a file with one API key a line; without it, no request needs a key");
    field("cors", cors, "an origin, such as https://example.org, whose web pages may call the server, or *; may be given several times");
    field("max_body_bytes", max_body_bytes,
          "a request with a larger body is refused with status 413; a request that may contain a state may be larger by its size");
    field("max_total_body_bytes", max_total_body_bytes, "bodies of all requests that are being read or parsed; more get status 503");
    field("max_header_bytes", max_header_bytes, "a request with larger headers is refused with status 431");
    field("max_connections", max_connections, "further connections are closed at once");
    field("max_write_queue_bytes", max_write_queue_bytes, "a streaming client that leaves more unread than this is disconnected");
    field("handler_threads", handler_threads, "threads that parse requests");
    field("max_pending_handlers", max_pending_handlers, "requests that may wait for these threads; more get status 429");
    field("header_seconds", header_seconds, "the time in which a request's headers must arrive");
    field("body_seconds", body_seconds, "the time in which a request's body must arrive");
    field("idle_seconds", idle_seconds, "the time after which a connection without a request is closed");
    field("write_seconds", write_seconds, "a client that accepts no byte of a reply for this time is disconnected");
    field("ping_seconds", ping_seconds, "a silent event stream gets a comment this often");
  }
};

// Throws UsageError for values out of range and for options that exclude each other.
void check_http_options(const HttpServerOptions& options);

}  // namespace based
