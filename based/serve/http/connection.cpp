#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <deque>
#include <type_traits>
#include <utility>

#include "based/core/log.h"
#include "based/core/profile.h"
#include "based/core/text.h"
#include "based/serve/http/header_scanner.h"
#include "based/serve/http/reply.h"
#include "based/serve/http/request_check.h"
#include "based/serve/http/server_context.h"

namespace based {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kReadBytes = 4096, kBodyReadBytes = 64 << 10;
constexpr int64_t kSmallBodyBytes = 64 << 10;  // a refused request's body of this size is read, so that the connection can be used again
constexpr size_t kMaxGathered = 16;            // pieces of a reply that are written by one call
constexpr double kLingerSeconds = 2;           // how long the rest of a refused request is read before the connection closes
constexpr int kRetrySeconds = 1;               // for Retry-After

// Counts the bytes of a body as long as the request exists.
class CountedBytes {
 public:
  explicit CountedBytes(std::atomic<int64_t>& sum) : sum_(&sum) {}
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;
  ~CountedBytes() { *sum_ -= bytes_; }
  int64_t set(int64_t bytes) {  // returns the sum of all requests
    const int64_t added = bytes - std::exchange(bytes_, bytes);
    return *sum_ += added;
  }

 private:
  std::atomic<int64_t>* sum_;
  int64_t bytes_ = 0;
};

// A request on its way from the I/O thread to a handler.
struct PendingRequest {
  HttpRequest request;
  std::shared_ptr<const HttpRouter> router;  // owns the handler
  const HttpHandler* handler = nullptr;
  std::shared_ptr<Reply> reply;
  std::shared_ptr<CountedBytes> bytes;
};

void send_error(Responder& reply, const ApiError& error, HttpHeaders extra = {}) {
  if (error.retry_after() > 0) extra.emplace_back("Retry-After", std::to_string(error.retry_after()));
  reply.send(error.status(), "application/json", dump_json(error.to_json()), extra);
}

void run_handler(const PendingRequest& pending) {
  const ProfileRange range(ProfileLevel::phases, "handle request");
  try {
    (*pending.handler)(pending.request, pending.reply);
  } catch (const ApiError& error) {
    send_error(*pending.reply, error);
  } catch (const UsageError& error) {
    send_error(*pending.reply, ApiError::invalid("", error.what()));
  } catch (const std::exception& error) {
    log_error(pending.request.id + ": " + error.what());
    send_error(*pending.reply, ApiError::failed(error.what()));
  }
}

template <class Stream>
class Connection final : public HttpConnection, public ReplyChannel, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  static constexpr bool kTls = !std::is_same_v<Stream, GenericSocket>;

  template <class... Arguments>
  Connection(std::shared_ptr<ServerContext> context, std::string remote, Arguments&&... stream)
      : context_(std::move(context)),
        remote_(std::move(remote)),
        stream_(std::forward<Arguments>(stream)...),
        read_deadline_(context_->io),
        write_deadline_(context_->io),
        ping_deadline_(context_->io) {}

  // --- HttpConnection
  void start() override {
    if constexpr (kTls) {
      phase_ = Phase::header;
      set_read_deadline(context_->options.header_seconds);
      stream_.async_handshake(net::ssl::stream_base::server, [self = this->shared_from_this()](const error_code& error) {
        error ? self->close() : self->start_request();
      });
    } else {
      start_request();
    }
  }
  void close() override {
    const Phase before = std::exchange(phase_, Phase::closed);
    if (before == Phase::closed) return;
    if (before == Phase::replying) add_profile_spans();
    for (Deadline* const deadline : {&read_deadline_, &write_deadline_, &ping_deadline_}) deadline->timer.cancel();
    on_sent_ = nullptr;
    error_code ignored;
    socket().close(ignored);
    const auto self = this->shared_from_this();
    context_->connections.erase(this);
    --context_->connection_count;
    if (const auto reply = reply_.lock()) reply->client_gone();
  }
  void close_if_idle() override {
    if (phase_ == Phase::idle) close();
  }

  // --- ReplyChannel
  void send_bytes(std::string bytes, AfterBytes after) override {
    unsent_ += static_cast<int64_t>(bytes.size());
    net::post(context_->io,
              [self = this->shared_from_this(), bytes = std::move(bytes), after]() mutable { self->queue_bytes(std::move(bytes), after); });
  }
  int64_t unsent_bytes() const override { return unsent_; }
  void abort() override {
    net::post(context_->io, [self = this->shared_from_this()] { self->close(); });
  }
  void on_sent(std::function<void()> callback) override {
    net::post(context_->io, [self = this->shared_from_this(), callback = std::move(callback)]() mutable {
      if (self->phase_ == Phase::closed) return;
      self->on_sent_ = std::move(callback);
      self->tell_if_sent();
    });
  }

 private:
  enum class Phase { idle, header, body, replying, lingering, closed };
  using Parser = http::request_parser<http::string_body>;

  auto& socket() {
    if constexpr (kTls)
      return stream_.next_layer();
    else
      return stream_;
  }

  // --- deadlines
  using Clock = net::steady_timer::clock_type;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  // A deadline is set anew at each read and write. That costs an operation of the timer only if the deadline is now before the timer's end;
  // a timer that ends before its deadline waits again.
  struct Deadline {
    explicit Deadline(net::io_context& io) : timer(io) {}
    net::steady_timer timer;
    Clock::time_point at = kNever, timer_end = kNever;
  };

  void set(Deadline& deadline, double seconds, void (Connection::*action)()) {
    deadline.at = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (deadline.at < deadline.timer_end) wait(deadline, action);
  }
  void wait(Deadline& deadline, void (Connection::*action)()) {
    deadline.timer_end = deadline.at;
    deadline.timer.expires_at(deadline.at);
    deadline.timer.async_wait([self = this->shared_from_this(), &deadline, action](const error_code& error) {
      if (error || self->phase_ == Phase::closed || deadline.timer_end > Clock::now()) return;
      deadline.timer_end = kNever;
      if (deadline.at == kNever) return;
      if (deadline.at > Clock::now()) return self->wait(deadline, action);
      deadline.at = kNever;
      (self.get()->*action)();
    });
  }
  void set_read_deadline(double seconds) { set(read_deadline_, seconds, &Connection::time_out); }
  void time_out() {
    if (phase_ != Phase::header && phase_ != Phase::body) return close();
    if (phase_ == Phase::header && received_ == 0) return close();
    refuse(ApiError(408, "timeout_error", "the request did not arrive in time", "", "timeout"));
  }
  void set_ping_deadline() { set(ping_deadline_, context_->options.ping_seconds, &Connection::ping); }
  void ping() {
    if (const auto reply = reply_.lock()) reply->ping();
    set_ping_deadline();
  }

  // --- reading
  void start_request() {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(context_->options.max_header_bytes + 1));
    parser_->body_limit(static_cast<uint64_t>(std::max(context_->options.max_body_bytes, context_->router->largest_body_bytes())) +
                        2 * kBodyReadBytes);
    scanner_.emplace(static_cast<size_t>(context_->options.max_header_bytes));
    checked_.reset();
    bytes_.reset();
    reply_.reset();
    reply_complete_ = false;
    received_ = static_cast<int64_t>(buffer_.size());
    if (buffer_.size() > 0) {
      phase_ = Phase::header;
      times_ = {.begin = ProfileClock::now()};
      set_read_deadline(context_->options.header_seconds);
      scan_and_parse(buffer_.size());
      return;
    }
    buffer_.shrink_to_fit();
    if (!reading_) incoming_ = {};
    phase_ = Phase::idle;
    set_read_deadline(context_->options.idle_seconds);
    read();
  }

  void read() {
    if (reading_ || phase_ == Phase::closed) return;
    reading_ = true;
    incoming_.resize(phase_ == Phase::body ? kBodyReadBytes : kReadBytes);
    stream_.async_read_some(net::buffer(incoming_),
                            [self = this->shared_from_this()](const error_code& error, size_t bytes) { self->on_read(error, bytes); });
  }

  void on_read(const error_code& error, size_t bytes) {
    reading_ = false;
    if (phase_ == Phase::closed) return;
    if (error) return close();  // a client that half-closes the connection counts as gone, too
    buffer_.commit(net::buffer_copy(buffer_.prepare(bytes), net::buffer(incoming_, bytes)));
    received_ += static_cast<int64_t>(bytes);
    switch (phase_) {
      case Phase::idle:
        phase_ = Phase::header;
        times_ = {.begin = ProfileClock::now()};
        set_read_deadline(context_->options.header_seconds);
        return scan_and_parse(bytes);
      case Phase::header: return scan_and_parse(bytes);
      case Phase::body: return parse();
      case Phase::replying:  // the next request; a little of it is read, so that the end of the connection is noticed
        if (buffer_.size() < kBodyReadBytes) read();
        return;
      case Phase::lingering: buffer_.consume(buffer_.size()); return read();
      case Phase::closed: return;
    }
  }

  // `fresh`: the last bytes of the buffer, which have not been scanned.
  void scan_and_parse(size_t fresh) {
    const auto data = buffer_.data();
    const std::string_view unread(static_cast<const char*>(data.data()), data.size());
    switch (scanner_->scan(unread.substr(unread.size() - fresh))) {
      case HeaderScanner::Result::incomplete: return read();
      case HeaderScanner::Result::complete: return parse();
      case HeaderScanner::Result::malformed:
        return refuse(ApiError::invalid("", "the request's header has a line that does not end with CR LF, or that continues another one"));
      case HeaderScanner::Result::too_large:
        return refuse(ApiError(431, "invalid_request_error",
                               "the request's header has more than " + std::to_string(context_->options.max_header_bytes) + " bytes"));
    }
  }

  void parse() {
    while (!parser_->is_done()) {
      error_code error;
      const size_t used = parser_->put(buffer_.data(), error);
      buffer_.consume(used);
      if (error && error != http::error::need_more) return refuse_malformed(error);
      if (parser_->is_header_done() && !checked_) {
        check_header();
        if (phase_ != Phase::header && phase_ != Phase::body) return;
      }
      if (checked_ && !body_fits()) return;
      if (parser_->is_done()) break;
      if (error == http::error::need_more || buffer_.size() == 0) {
        if (buffer_.size() >= kBodyReadBytes) return refuse(ApiError::invalid("", "the request's chunks cannot be read"));
        return read();
      }
      if (used == 0) return refuse(ApiError::invalid("", "the request cannot be read"));
    }
    dispatch();
  }

  void refuse_malformed(const error_code& error) {
    if (error == http::error::body_limit)
      return refuse(ApiError::too_large("", "the request's body is larger than this server accepts (--max-body-bytes)"));
    if (error == http::error::header_limit) return refuse(ApiError(431, "invalid_request_error", "the request's header is too large"));
    if (error == http::error::bad_version)
      return refuse(ApiError(505, "invalid_request_error", "only HTTP/1.0 and HTTP/1.1 are supported"));
    refuse(ApiError::invalid("", "the request is malformed: " + error.message()));
  }

  void check_header() {
    const auto& message = parser_->get();
    HttpRequest request;
    request.method = std::string(message.method_string());
    request.remote = remote_;
    for (const auto& field : message) request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    const auto target = message.target();
    router_ = context_->router;
    checked_.emplace(check_request(std::move(request), {target.data(), target.size()}, message.version() < 11, context_->options, *router_,
                                   context_->keys));
    bytes_ = std::make_shared<CountedBytes>(context_->body_bytes);
    const auto length = static_cast<int64_t>(std::min<uint64_t>(parser_->content_length().value_or(0), INT64_MAX));
    if (checked_->must_close) return refuse(*checked_->refusal);
    if (length > checked_->max_body_bytes) return refuse(body_too_large());
    const bool unknown_length = parser_->chunked();
    if (checked_->refusal && (checked_->expects_continue || unknown_length || length > kSmallBodyBytes)) return refuse(*checked_->refusal);
    if (parser_->is_done()) return;
    phase_ = Phase::body;
    set_read_deadline(context_->options.body_seconds);
    if (checked_->expects_continue) send_bytes("HTTP/1.1 100 Continue\r\n\r\n", AfterBytes::more);
  }

  ApiError body_too_large() const {
    return ApiError::too_large("", "the request's body is larger than " + std::to_string(checked_->max_body_bytes) + " bytes");
  }

  // Refuses the request and returns false if its body exceeds a limit.
  bool body_fits() {
    const auto size = static_cast<int64_t>(parser_->get().body().size());
    if (size > checked_->max_body_bytes) {
      refuse(body_too_large());
      return false;
    }
    if (bytes_->set(size) <= context_->options.max_total_body_bytes) return true;
    refuse(ApiError::unavailable("the server is receiving too many large requests (--max-total-body-bytes)"));
    return false;
  }

  // --- replying
  std::shared_ptr<Reply> make_reply(bool keep_alive) {
    read_deadline_.at = kNever;
    phase_ = Phase::replying;
    times_.read = times_.first_write = ProfileClock::now();
    const auto& message = parser_->get();
    ReplyForm form;
    const auto id = message["X-Request-Id"];
    form.request_id = checked_ ? checked_->request.id : request_id_of({id.data(), id.size()});
    form.remote = remote_;
    form.label = checked_ ? printable(checked_->request.method, 16) + " " + printable(checked_->request.path, 200) : "(malformed)";
    if (checked_) form.extra = checked_->reply_headers;
    form.head = message.method() == http::verb::head;
    form.chunked = message.version() >= 11;
    form.keep_alive = keep_alive && message.keep_alive() && form.chunked && !context_->stopping;
    form.logged = !checked_ || checked_->access != Access::on_io_thread;
    form.max_unsent_bytes = context_->options.max_write_queue_bytes;
    if (profiles(ProfileLevel::phases)) times_.request = form.request_id;
    auto reply = std::make_shared<Reply>(this->shared_from_this(), std::move(form));
    reply_ = reply;
    return reply;
  }

  // Replies with an error and closes the connection.
  void refuse(const ApiError& error) {
    if (phase_ == Phase::closed) return;
    send_error(*make_reply(/*keep_alive=*/false), error);
  }

  void dispatch() {
    PendingRequest pending;
    pending.reply = make_reply(/*keep_alive=*/true);
    set_ping_deadline();
    read();
    if (checked_->refusal) return send_error(*pending.reply, *checked_->refusal);
    if (checked_->is_preflight) return pending.reply->send(204, "", "");
    pending.request = std::move(checked_->request);
    pending.request.body = std::move(parser_->get().body());
    pending.handler = checked_->handler;
    pending.router = router_;
    pending.bytes = std::exchange(bytes_, nullptr);
    if (checked_->access == Access::on_io_thread) return run_handler(pending);
    if (context_->pending_handlers >= context_->options.max_pending_handlers)
      return send_error(*pending.reply, ApiError::overloaded("too many requests are waiting to be read", kRetrySeconds));
    ++context_->pending_handlers;
    net::post(context_->handlers, [context = context_, pending = std::move(pending)]() mutable {
      name_profile_thread("http handler");
      run_handler(pending);
      --context->pending_handlers;
      pending = {};
    });
  }

  void queue_bytes(std::string bytes, AfterBytes after) {
    if (phase_ == Phase::closed) return;
    if (phase_ == Phase::replying && !std::exchange(times_.writes, true)) times_.first_write = ProfileClock::now();
    if (!bytes.empty()) out_.push_back(std::move(bytes));
    if (after != AfterBytes::more) {
      reply_complete_ = true;
      keep_alive_ = after == AfterBytes::next_request;
    }
    if (!writing_) write();
  }

  void write() {
    if (out_.empty()) {
      write_deadline_.at = kNever;
      if (reply_complete_) finish_reply();
      return;
    }
    writing_ = true;
    set(write_deadline_, context_->options.write_seconds, &Connection::close);
    std::vector<net::const_buffer> pieces;
    for (size_t i = 0; i < std::min(out_.size(), kMaxGathered); ++i) pieces.push_back(net::buffer(out_[i]));
    pieces[0] += out_offset_;
    stream_.async_write_some(pieces,
                             [self = this->shared_from_this()](const error_code& error, size_t bytes) { self->on_write(error, bytes); });
  }

  void tell_if_sent() {
    if (unsent_ > 0 || !on_sent_) return;
    std::exchange(on_sent_, nullptr)();
  }

  void on_write(const error_code& error, size_t bytes) {
    writing_ = false;
    if (phase_ == Phase::closed) return;
    if (error) return close();
    unsent_ -= static_cast<int64_t>(bytes);
    tell_if_sent();
    out_offset_ += bytes;
    while (!out_.empty() && out_offset_ >= out_.front().size()) {
      out_offset_ -= out_.front().size();
      out_.pop_front();
    }
    if (phase_ == Phase::replying && !reply_complete_) set_ping_deadline();
    write();
  }

  // The row of the request in a profile: from its first byte to the last one of its reply.
  void add_profile_spans() {
    if (times_.request.empty()) return;
    const std::string request = std::exchange(times_.request, "");
    const auto row = static_cast<uint64_t>(times_.begin.time_since_epoch().count());  // clients may give several requests the same id
    const auto now = ProfileClock::now();
    const auto add = [&](const char* name, ProfileClock::time_point begin, ProfileClock::time_point end) {
      add_profile_span({name, "request", row, begin, end, request});
    };
    add("request", times_.begin, now);
    add("read", times_.begin, times_.read);
    if (times_.writes) add("write", times_.first_write, now);
  }

  void finish_reply() {
    add_profile_spans();
    reply_complete_ = false;
    ping_deadline_.at = kNever;
    if (keep_alive_ && !context_->stopping) return start_request();
    // Closing while bytes of the client are unread would reset the connection, and the client might lose the reply.
    phase_ = Phase::lingering;
    reply_.reset();
    error_code ignored;
    socket().shutdown(net::socket_base::shutdown_send, ignored);
    set_read_deadline(kLingerSeconds);
    buffer_.consume(buffer_.size());
    read();
  }

  const std::shared_ptr<ServerContext> context_;
  const std::string remote_;
  Stream stream_;
  Deadline read_deadline_, write_deadline_, ping_deadline_;
  Phase phase_ = Phase::idle;
  std::vector<char> incoming_;        // the target of the pending read, which may outlive a request
  boost::beast::flat_buffer buffer_;  // bytes that have not been parsed
  std::optional<Parser> parser_;
  std::optional<HeaderScanner> scanner_;
  std::optional<CheckedRequest> checked_;
  std::shared_ptr<const HttpRouter> router_;  // the current request's
  std::shared_ptr<CountedBytes> bytes_;
  std::weak_ptr<Reply> reply_;
  std::deque<std::string> out_;
  size_t out_offset_ = 0;  // bytes of out_.front() that have been written
  int64_t received_ = 0;   // bytes of the current request
  struct {
    ProfileClock::time_point begin = {}, read = {}, first_write = {};  // the request's first byte, its end, the reply's first byte
    bool writes = false;
    std::string request = {};  // its id, if a profile is recorded
  } times_;
  bool reading_ = false, writing_ = false, reply_complete_ = false, keep_alive_ = true;
  std::atomic<int64_t> unsent_{0};
  std::function<void()> on_sent_;
};

}  // namespace

std::shared_ptr<HttpConnection> make_connection(const std::shared_ptr<ServerContext>& context, GenericSocket socket,
                                                const std::string& remote) {
  if (context->tls) return std::make_shared<Connection<net::ssl::stream<GenericSocket>>>(context, remote, std::move(socket), *context->tls);
  return std::make_shared<Connection<GenericSocket>>(context, remote, std::move(socket));
}

}  // namespace based
