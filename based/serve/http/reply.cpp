#include "based/serve/http/reply.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "based/core/log.h"
#include "based/core/text.h"
#include "based/serve/protocol/api_error.h"

namespace based {
namespace {

constexpr const char* kJson = "application/json";

std::string chunk_of(const std::string& bytes) {
  std::array<char, 24> size{};
  std::snprintf(size.data(), size.size(), "%zx\r\n", bytes.size());
  return size.data() + bytes + "\r\n";
}

// Removes line ends from a header's value: with one, the value could add headers.
std::string one_line(std::string value) {
  std::erase_if(value, [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
  return value;
}

}  // namespace

std::string_view status_text(int status) {
  static constexpr std::array<std::pair<int, std::string_view>, 24> kTexts{{{200, "OK"},
                                                                            {201, "Created"},
                                                                            {202, "Accepted"},
                                                                            {204, "No Content"},
                                                                            {304, "Not Modified"},
                                                                            {400, "Bad Request"},
                                                                            {401, "Unauthorized"},
                                                                            {403, "Forbidden"},
                                                                            {404, "Not Found"},
                                                                            {405, "Method Not Allowed"},
                                                                            {406, "Not Acceptable"},
                                                                            {408, "Request Timeout"},
                                                                            {409, "Conflict"},
                                                                            {411, "Length Required"},
                                                                            {413, "Content Too Large"},
                                                                            {415, "Unsupported Media Type"},
                                                                            {417, "Expectation Failed"},
                                                                            {422, "Unprocessable Content"},
                                                                            {429, "Too Many Requests"},
                                                                            {431, "Request Header Fields Too Large"},
                                                                            {500, "Internal Server Error"},
                                                                            {501, "Not Implemented"},
                                                                            {503, "Service Unavailable"},
                                                                            {504, "Gateway Timeout"}}};
  const auto* const found = std::find_if(kTexts.begin(), kTexts.end(), [&](const auto& one) { return one.first == status; });
  return found == kTexts.end() ? "Status" : found->second;
}

Reply::Reply(std::shared_ptr<ReplyChannel> channel, ReplyForm form) : channel_(std::move(channel)), form_(std::move(form)) {}

Reply::~Reply() {
  try {
    if (phase_ == Phase::waiting) send(500, kJson, dump_json(ApiError::failed("the request was dropped without a reply").to_json()));
    if (phase_ == Phase::streaming) channel_->abort();
  } catch (const std::exception& error) {
    log_error(form_.request_id + ": " + error.what());
  }
}

std::string Reply::header(int status, std::string_view content_type, const HttpHeaders& extra, const std::string& framing) const {
  std::string text = "HTTP/1.1 " + std::to_string(status) + " " + std::string(status_text(status)) + "\r\n";
  const auto add = [&](const std::string& name, const std::string& value) { text += name + ": " + one_line(value) + "\r\n"; };
  add("X-Request-Id", form_.request_id);
  if (!content_type.empty()) add("Content-Type", std::string(content_type));
  add("X-Content-Type-Options", "nosniff");
  for (const auto& [name, value] : form_.extra) add(name, value);
  for (const auto& [name, value] : extra) add(name, value);
  if (!keep_alive_) add("Connection", "close");
  return text + framing + "\r\n";
}

void Reply::log(const char* ending) const {
  if (!form_.logged && status_ < 400) return;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  log_info(form_.request_id + " " + form_.remote + " " + form_.label + " " + std::to_string(status_) + " " + std::to_string(bytes_) +
           " bytes in " + format_number(seconds, 3) + " s" + ending);
}

void Reply::send(int status, std::string_view content_type, std::string body, const HttpHeaders& extra) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::waiting) return;
  phase_ = Phase::complete;
  on_close_ = nullptr;
  status_ = status;
  bytes_ = static_cast<int64_t>(body.size());
  keep_alive_ = form_.keep_alive;
  const bool no_body = status == 204 || status == 304;
  std::string bytes = header(status, content_type, extra, no_body ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n");
  if (!form_.head && !no_body) bytes += body;
  channel_->send_bytes(std::move(bytes), after_reply());
  log("");
}

void Reply::begin_stream(int status, std::string_view content_type, const HttpHeaders& extra) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::waiting) return;
  phase_ = Phase::streaming;
  status_ = status;
  is_event_stream_ = content_type.starts_with("text/event-stream");
  keep_alive_ = form_.keep_alive && form_.chunked;  // otherwise the end of the connection is the end of the reply
  const std::string framing = std::string(form_.chunked ? "Transfer-Encoding: chunked\r\n" : "") +
                              (is_event_stream_ ? "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n" : "");
  channel_->send_bytes(header(status, content_type, extra, framing), AfterBytes::more);
}

bool Reply::write(std::string chunk) {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::streaming) return false;
    if (chunk.empty() || form_.head) return true;
    if (channel_->unsent_bytes() + static_cast<int64_t>(chunk.size()) <= form_.max_unsent_bytes) {
      bytes_ += static_cast<int64_t>(chunk.size());
      channel_->send_bytes(form_.chunked ? chunk_of(chunk) : std::move(chunk), AfterBytes::more);
      return true;
    }
    phase_ = Phase::closed;
    log(", disconnected: the client reads too slowly");
    gone = std::exchange(on_close_, nullptr);
    channel_->abort();
  }
  if (gone) gone();
  return false;
}

void Reply::end() {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::streaming) return;
  phase_ = Phase::complete;
  on_close_ = nullptr;
  channel_->send_bytes(form_.chunked && !form_.head ? "0\r\n\r\n" : "", after_reply());
  log("");
}

void Reply::on_close(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::complete) return;
    if (phase_ != Phase::closed) {
      on_close_ = std::move(callback);
      return;
    }
  }
  callback();
}

bool Reply::closed() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::closed;
}

bool Reply::is_written(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::streaming || channel_->unsent_bytes() == 0) return true;
  channel_->on_sent(std::move(callback));
  return false;
}

void Reply::client_gone() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::complete || phase_ == Phase::closed) return;
    phase_ = Phase::closed;
    log(", the client has gone");
    gone = std::exchange(on_close_, nullptr);
  }
  if (gone) gone();
}

bool Reply::ping() {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::streaming || !is_event_stream_) return false;
  static constexpr const char* kComment = ":\n\n";
  channel_->send_bytes(form_.chunked ? chunk_of(kComment) : kComment, AfterBytes::more);
  return true;
}

}  // namespace based
