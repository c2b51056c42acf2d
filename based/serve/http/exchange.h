// One HTTP request and the reply to it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace based {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;     // percent-decoded, without the query
  std::string query;    // the undecoded text after '?'
  HttpHeaders headers;  // in the order of arrival
  std::string body;
  std::string id;                                         // X-Request-Id, or a random one; every log line of the request has it
  std::string owner;                                      // ApiKeys::owner() of the request's key; empty if the server has no keys
  std::string remote;                                     // the client's address, for logs
  HttpHeaders captured;                                   // the parts of the path that the route's pattern names: {"id", "st_1"}
  std::string_view header(std::string_view name) const;   // the value, or "" if absent; names are case-insensitive
  std::string_view capture(std::string_view name) const;  // a value of `captured`, or ""
  std::string query_value(std::string_view name) const;   // percent-decoded; "" if absent
};

// The reply to one request. All functions may be called from any thread. Calls after the client has gone have no effect. If the last
// reference is dropped before the reply is complete, the client gets status 500, or its stream is cut off.
class Responder {
 public:
  virtual ~Responder() = default;

  // A whole reply. It must be the only one.
  virtual void send(int status, std::string_view content_type, std::string body, const HttpHeaders& extra = {}) = 0;

  // A reply in pieces: begin_stream() sends the header, write() a chunk, end() completes it. A stream of type text/event-stream gets the
  // comment ":\n\n" whenever ping_seconds pass without a chunk.
  virtual void begin_stream(int status, std::string_view content_type, const HttpHeaders& extra = {}) = 0;
  // False if the client has gone; also if it reads so slowly that max_write_queue_bytes would be exceeded, and then it is disconnected.
  virtual bool write(std::string chunk) = 0;
  virtual void end() = 0;

  // Calls `callback` once if the client closes, resets or half-closes the connection, or is disconnected, before the reply is complete. If
  // that has happened already, it is called at once, in this thread; otherwise on an I/O thread. It must not block.
  virtual void on_close(std::function<void()> callback) = 0;
  virtual bool closed() const = 0;

  // Whether the system has accepted all bytes that were written. If not, `callback` is called on an I/O thread once it has; never if the
  // client goes. Only the last callback counts.
  virtual bool is_written(std::function<void()> callback) = 0;
};

}  // namespace based
