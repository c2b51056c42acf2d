// The reply to one request as bytes of HTTP/1.1, independent of the connection that sends them.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "based/serve/http/exchange.h"

namespace based {

std::string_view status_text(int status);  // "Not Found"

// A reply's bytes are followed by more of them, by the next request on the same connection, or by the end of the connection.
enum class AfterBytes { more, next_request, close };

// The connection of a reply. All functions may be called from any thread.
class ReplyChannel {
 public:
  virtual ~ReplyChannel() = default;
  virtual void send_bytes(std::string bytes, AfterBytes after) = 0;  // after those that were sent before
  virtual int64_t unsent_bytes() const = 0;                          // accepted by send_bytes, not yet by the system
  virtual void abort() = 0;                                          // closes the connection at once
  // Calls back on an I/O thread when unsent_bytes() is 0; replaces an earlier callback.
  virtual void on_sent(std::function<void()> callback) = 0;
};

// The properties of a request that decide the form of its reply.
struct ReplyForm {
  std::string request_id;
  std::string label;  // "POST /v1/completions", for the log
  std::string remote;
  HttpHeaders extra;  // headers of every reply to the request, such as those of CORS
  bool head = false;  // the reply has no body
  bool chunked = true;
  bool keep_alive = true;  // whether the connection may be used again
  bool logged = true;
  int64_t max_unsent_bytes = 0;
};

class Reply final : public Responder {
 public:
  Reply(std::shared_ptr<ReplyChannel> channel, ReplyForm form);
  ~Reply() override;

  void send(int status, std::string_view content_type, std::string body, const HttpHeaders& extra = {}) override;
  void begin_stream(int status, std::string_view content_type, const HttpHeaders& extra = {}) override;
  bool write(std::string chunk) override;
  void end() override;
  void on_close(std::function<void()> callback) override;
  bool closed() const override;
  bool is_written(std::function<void()> callback) override;

  void client_gone();  // called by the connection
  bool ping();         // sends a comment if this is an event stream in progress; false: it is none

 private:
  enum class Phase { waiting, streaming, complete, closed };
  std::string header(int status, std::string_view content_type, const HttpHeaders& extra, const std::string& framing) const;
  AfterBytes after_reply() const { return keep_alive_ ? AfterBytes::next_request : AfterBytes::close; }
  void log(const char* ending) const;

  const std::shared_ptr<ReplyChannel> channel_;
  const ReplyForm form_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;  // guards all members below
  Phase phase_ = Phase::waiting;
  bool is_event_stream_ = false, keep_alive_ = true;
  int status_ = 0;
  int64_t bytes_ = 0;
  std::function<void()> on_close_;
};

}  // namespace based
