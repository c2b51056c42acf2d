#include "based/serve/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "based/core/files.h"
#include "based/core/log.h"
#include "based/serve/http/api_keys.h"
#include "tests/core/temporary_folder.h"
#include "tests/serve/http/raw_client.h"

namespace based {
namespace server_test {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kText = "text/plain";

// Something that a thread of the server reports and the test waits for.
class Event {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool wait(double seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// A server with a few routes. /hold keeps its request open, /stream sends pieces until the client has gone.
class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    set_log_level(LogLevel::off);
    options_.port = 0;
  }
  ~HttpServerTest() override {
    server_.reset();
    set_log_level(LogLevel::info);
  }

  void start() {
    HttpRouter router;
    router.add("GET", "/hello", [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
      responder->send(200, kText, "hello " + request.owner);
    });
    router.add("POST", "/echo",
               [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) { responder->send(200, kText, request.body); });
    router.add("GET", "/items/{id}/content", [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
      responder->send(200, kText, std::string(request.capture("id")) + " " + request.query_value("q"));
    });
    router.add(
        "GET", "/open",
        [](const HttpRequest& request, const std::shared_ptr<Responder>& responder) { responder->send(200, kText, request.id); },
        Access::on_io_thread);
    router.add("GET", "/broken", [](const HttpRequest&, const std::shared_ptr<Responder>&) { throw Error("it broke"); });
    router.add("GET", "/conflict", [](const HttpRequest&, const std::shared_ptr<Responder>&) { throw ApiError::conflict("state", "no"); });
    router.add("GET", "/dropped", [](const HttpRequest&, const std::shared_ptr<Responder>&) {});
    router.add("POST", "/hold", [this](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
      held_ = responder;
      responder->on_close([this] { gone_.set(); });
      begun_.set();
    });
    router.add("GET", "/stream", [this](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
      held_ = responder;
      responder->begin_stream(200, "text/event-stream");
      begun_.set();
    });
    server_ = std::make_unique<HttpServer>(options_, std::move(router));
    server_->start();
  }
  std::string exchange(const std::string& request) {
    RawClient client(server_->port());
    client.send(request);
    return client.receive_all();
  }

  HttpServerOptions options_;
  std::shared_ptr<Responder> held_;
  Event begun_, gone_;
  std::unique_ptr<HttpServer> server_;
};

std::string get(const std::string& path, const std::string& more = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n";
}
std::string get_once(const std::string& path, const std::string& more = "") { return get(path, "Connection: close\r\n" + more); }
std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more + "\r\n" + body;
}

TEST_F(HttpServerTest, RoutesByMethodAndPathAndKeepsTheConnection) {
  start();
  RawClient client(server_->port());
  client.send(get("/items/st_1/content?q=a%20b"));
  EXPECT_THAT(client.receive_reply(), HasSubstr("\r\n\r\nst_1 a b"));
  client.send(post("/echo", "some bytes"));
  EXPECT_THAT(client.receive_reply(), HasSubstr("\r\n\r\nsome bytes"));
  client.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string head = client.receive_until("\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  client.send(get("/nothing"));
  EXPECT_THAT(client.receive_reply(), StartsWith("HTTP/1.1 404 "));
  client.send(get("/echo"));
  const std::string wrong = client.receive_reply();
  EXPECT_THAT(wrong, StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(wrong, HasSubstr("Allow: OPTIONS, POST\r\n"));
  client.send("OPTIONS /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(client.receive_until("\r\n\r\n"), StartsWith("HTTP/1.1 204 "));
  client.send(get_once("/hello"));
  EXPECT_THAT(client.receive_all(), HasSubstr("hello "));
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, AnswersRequestsThatArriveTogetherInOrder) {
  start();
  const std::string replies = exchange(post("/echo", "first") + post("/echo", "second") + get_once("/hello"));
  const size_t first = replies.find("first"), second = replies.find("second"), third = replies.find("hello");
  EXPECT_TRUE(first < second && second < third && third != std::string::npos) << replies;
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndExpectations) {
  start();
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                       "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
              HasSubstr("\r\n\r\nabcde"));
  RawClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_THAT(client.receive_until("\r\n\r\n"), StartsWith("HTTP/1.1 100 "));
  client.send("body");
  EXPECT_THAT(client.receive_reply(), HasSubstr("\r\n\r\nbody"));
}

TEST_F(HttpServerTest, FailuresOfHandlersAreReplies) {
  start();
  EXPECT_THAT(exchange(get_once("/broken")), HasSubstr("it broke"));
  EXPECT_THAT(exchange(get_once("/conflict")), StartsWith("HTTP/1.1 409 "));
  EXPECT_THAT(exchange(get_once("/dropped")), StartsWith("HTTP/1.1 500 "));
}

// A request that two servers could read differently is refused, and nothing after it on the connection is answered.
TEST_F(HttpServerTest, RefusesAmbiguousRequestsAndCloses) {
  start();
  const std::string smuggled = get("/hello");
  const std::string line = "POST /echo HTTP/1.1\r\nHost: x\r\n";
  const std::vector<std::pair<std::string, const char*>> attacks{
      {line + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "400"},
      {line + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + smuggled, "400"},
      {line + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc" + smuggled, "400"},
      {line + "Content-Length: +3\r\n\r\nabc" + smuggled, "400"},
      {line + "Transfer-Encoding: gzip\r\n\r\n" + smuggled, "501"},
      {line + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + smuggled, "501"},
      {line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + smuggled, "400"},
      {line + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + smuggled, "400"},
      {line + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + smuggled, "400"},
      {line + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + smuggled, "400"},
      {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, "400"},
      {"GET /hello HTTP/1.1\nHost: x\n\n" + smuggled, "400"},
      {"GET /hello HTTP/1.1\r\nHost: x\nX: y\r\n\r\n" + smuggled, "400"},
      {"GET /hello HTTP/1.1\r\nHost: x\r\n continued\r\n\r\n" + smuggled, "400"},
      {std::string("GET /hello HTTP/1.1\r\nHost: x\0y\r\n\r\n", 34) + smuggled, "400"},
      {"GET http://other/hello HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled, "400"},
      {"GET http:/hello HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled, "400"},
      {"GET http://x@other/hello HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled, "400"},
      {"GET ftp://x/hello HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled, "400"},
      {"GET hello HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled, "400"},
      {"GET /items/a%2Fb/content HTTP/1.1\r\nHost: x\r\n\r\n" + smuggled, "400"},
      {"GET /hello HTTP/1.1\r\n\r\n" + smuggled, "400"},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n" + smuggled, "400"},
      {"GET /hello HTTP/3.1\r\nHost: x\r\n\r\n" + smuggled, "505"},
      {"GET /hello HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n" + smuggled, "417"},
      {"\r\n" + smuggled, "400"},
  };
  for (const auto& [request, status] : attacks) {
    const std::string reply = exchange(request);
    EXPECT_THAT(reply, StartsWith(std::string("HTTP/1.1 ") + status + " ")) << request;
    EXPECT_THAT(reply, HasSubstr("Connection: close\r\n")) << request;
    EXPECT_THAT(reply, Not(HasSubstr("hello "))) << request;
  }
  EXPECT_THAT(exchange(get_once("/hello")), HasSubstr("hello "));
}

// As a client sends them that takes the server for a proxy.
TEST_F(HttpServerTest, AnswersTargetsInAbsoluteForm) {
  start();
  const auto ask = [&](const std::string& target) {
    return exchange("GET " + target + " HTTP/1.1\r\nHost: Example.org:80\r\nConnection: close\r\n\r\n");
  };
  EXPECT_EQ(ask("http://example.org:80/hello?a=1").substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(ask("HTTPS://example.org:80/hello").substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(ask("http://example.org:80").substr(0, 12), ask("/").substr(0, 12));
}

TEST_F(HttpServerTest, RefusesEncodedBodies) {
  start();
  const std::string reply = exchange(post("/echo", "body", "Content-Encoding: gzip\r\nConnection: close\r\n"));
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(reply, HasSubstr("Accept-Encoding: identity\r\n"));
  EXPECT_THAT(reply, HasSubstr("the content coding 'gzip' is not supported"));
  EXPECT_THAT(exchange(post("/echo", "body", "Content-Encoding: identity\r\nConnection: close\r\n")), HasSubstr("\r\n\r\nbody"));
  EXPECT_THAT(exchange(post("/none", "body", "Content-Encoding: gzip\r\nConnection: close\r\n")), StartsWith("HTTP/1.1 404 "));
}

TEST_F(HttpServerTest, BoundsHeadersAndBodies) {
  options_.max_header_bytes = 1024;
  options_.max_body_bytes = 4096;
  start();
  EXPECT_THAT(exchange(get("/hello", "X: " + std::string(2000, 'x') + "\r\n")), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange("GET /" + std::string(4000, 'x')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(exchange(post("/echo", std::string(4097, 'x'))), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(exchange("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
  EXPECT_THAT(exchange(post("/echo", std::string(4096, 'x'), "Connection: close\r\n")), StartsWith("HTTP/1.1 200 "));
}

// 64 MiB in chunks: refused once the limit is passed, while the client is still sending.
TEST_F(HttpServerTest, RefusesAnEndlessChunkedBody) {
  start();
  RawClient client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(65536, 'x') + "\r\n";
  int sent = 0;
  while (sent < 1024 && client.send(chunk)) ++sent;
  EXPECT_THAT(client.receive_until("\r\n\r\n"), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, SlowHeadersAndBodiesTimeOut) {
  options_.header_seconds = options_.body_seconds = 0.2;
  start();
  RawClient header(server_->port()), body(server_->port());
  header.send("GET /hello HTTP/1.1\r\nHost");
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_THAT(header.receive_all(), StartsWith("HTTP/1.1 408 "));
  EXPECT_THAT(body.receive_all(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, ClosesIdleConnections) {
  options_.idle_seconds = 0.1;
  start();
  RawClient client(server_->port());
  EXPECT_EQ(client.receive_all(), "");
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpServerTest, RefusesConnectionsAboveTheLimit) {
  options_.max_connections = 1;
  start();
  RawClient first(server_->port());
  first.send(get("/hello"));
  EXPECT_THAT(first.receive_reply(), HasSubstr("hello "));
  RawClient second(server_->port());
  second.send(get("/hello"));
  EXPECT_EQ(second.receive_all(), "");
  first.send(get("/hello"));
  EXPECT_THAT(first.receive_reply(), HasSubstr("hello "));
}

TEST_F(HttpServerTest, NoticesClientsThatClose) {
  start();
  RawClient client(server_->port());
  client.send(post("/hold", "{}"));
  ASSERT_TRUE(begun_.wait());
  EXPECT_FALSE(held_->closed());
  client.close();
  EXPECT_TRUE(gone_.wait());
  EXPECT_TRUE(held_->closed());
  held_->send(200, kText, "too late");  // has no effect
}

TEST_F(HttpServerTest, NoticesClientsThatReset) {
  start();
  RawClient client(server_->port());
  client.send(post("/hold", "{}"));
  ASSERT_TRUE(begun_.wait());
  client.reset();
  EXPECT_TRUE(gone_.wait());
}

TEST_F(HttpServerTest, NoticesClientsThatHalfClose) {
  start();
  RawClient client(server_->port());
  client.send(post("/hold", "{}"));
  ASSERT_TRUE(begun_.wait());
  client.half_close();
  EXPECT_TRUE(gone_.wait());
  Event at_once;
  held_->on_close([&] { at_once.set(); });
  EXPECT_TRUE(at_once.wait(0));
}

TEST_F(HttpServerTest, ACompleteReplyIsNoLossOfTheClient) {
  start();
  RawClient client(server_->port());
  client.send(post("/hold", "{}"));
  ASSERT_TRUE(begun_.wait());
  held_->send(200, kText, "done");
  EXPECT_THAT(client.receive_reply(), HasSubstr("done"));
  client.send(get_once("/hello"));  // the server has passed the first request
  client.receive_all();
  EXPECT_FALSE(gone_.wait(0));
}

TEST_F(HttpServerTest, StreamsChunksAndPings) {
  options_.ping_seconds = 0.1;
  start();
  RawClient client(server_->port());
  client.send(get("/stream"));
  ASSERT_TRUE(begun_.wait());
  EXPECT_TRUE(held_->write("data: 1\n\n"));
  const std::string begin = client.receive_until("3\r\n:\n\n\r\n");
  EXPECT_THAT(begin, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(begin, HasSubstr("\r\n\r\n9\r\ndata: 1\n\n\r\n3\r\n:\n\n\r\n"));
  held_->end();
  EXPECT_TRUE(client.receive_until("0\r\n\r\n").ends_with("0\r\n\r\n"));
  client.send(get("/hello"));  // the connection is used again
  EXPECT_THAT(client.receive_reply(), HasSubstr("hello "));
}

TEST_F(HttpServerTest, DisconnectsAClientThatDoesNotRead) {
  options_.max_write_queue_bytes = 1 << 20;
  start();
  RawClient client(server_->port());
  client.send(get("/stream"));
  ASSERT_TRUE(begun_.wait());
  held_->on_close([this] { gone_.set(); });
  int64_t written = 0;
  const std::string piece(65536, 'x');
  while (written < (int64_t{1} << 30) && held_->write(piece)) written += static_cast<int64_t>(piece.size());
  EXPECT_LT(written, int64_t{1} << 30);
  EXPECT_TRUE(gone_.wait(0));
  EXPECT_FALSE(held_->write("more"));
}

TEST_F(HttpServerTest, TellsWhenAStreamIsWritten) {
  options_.max_write_queue_bytes = 1 << 30;
  start();
  RawClient client(server_->port());
  client.send(get("/stream"));
  ASSERT_TRUE(begun_.wait());
  Event written;
  const std::string piece(1 << 20, 'x');
  // More than the system buffers: the client does not read yet.
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(held_->write(piece));
  EXPECT_FALSE(held_->is_written([&] { written.set(); }));
  EXPECT_FALSE(written.wait(0));
  held_->write("the end");
  client.receive_until("the end");
  EXPECT_TRUE(written.wait());
  held_->end();
  EXPECT_TRUE(held_->is_written([] {})) << "a complete reply";
}

TEST_F(HttpServerTest, RequestIdsAreKeptOrMade) {
  start();
  EXPECT_THAT(exchange(get_once("/open", "X-Request-Id: my-id.7\r\n")), HasSubstr("X-Request-Id: my-id.7\r\n"));
  const std::string made = exchange(get_once("/open", "X-Request-Id: with space\r\n"));
  EXPECT_THAT(made, HasSubstr("X-Request-Id: req_"));
  EXPECT_THAT(exchange("nonsense\r\n\r\n"), HasSubstr("X-Request-Id: req_"));
}

TEST_F(HttpServerTest, KeysAreNeededExceptForPublicPaths) {
  const TemporaryFolder folder;
  options_.api_keys = folder.file("keys");
  write_file_atomic(options_.api_keys, "# keys\nfirst-key-1\nsecond-key-2\n");
  start();
  const std::string none = exchange(get_once("/hello"));
  EXPECT_THAT(none, StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(none, HasSubstr("authentication_error"));
  EXPECT_THAT(exchange(get_once("/hello", "Authorization: Bearer \r\n")), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(exchange(get_once("/hello", "Authorization: Bearer first-key-\r\n")), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(exchange(get_once("/open")), StartsWith("HTTP/1.1 200 "));
  const std::string first = exchange(get_once("/hello", "Authorization: Bearer first-key-1\r\n"));
  const std::string second = exchange(get_once("/hello", "X-Api-Key: second-key-2\r\n"));
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(second, StartsWith("HTTP/1.1 200 "));
  EXPECT_NE(first.substr(first.find("hello")), second.substr(second.find("hello")));
  EXPECT_THAT(first, Not(HasSubstr("first-key")));
}

TEST_F(HttpServerTest, WithoutKeysAnyKeyIsAccepted) {
  start();
  EXPECT_THAT(exchange(get_once("/hello", "Authorization: Bearer \r\n")), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(exchange(get_once("/hello", "Authorization: Bearer anything\r\n")), StartsWith("HTTP/1.1 200 "));
}

TEST_F(HttpServerTest, OnlyListedOriginsGetCorsHeaders) {
  options_.cors = {"https://good.example"};
  start();
  const std::string good = exchange(get_once("/hello", "Origin: https://good.example\r\n"));
  EXPECT_THAT(good, HasSubstr("Access-Control-Allow-Origin: https://good.example\r\n"));
  EXPECT_THAT(good, Not(HasSubstr("Allow-Credentials")));
  EXPECT_THAT(exchange(get_once("/hello", "Origin: https://bad.example\r\n")), Not(HasSubstr("Access-Control")));
  const std::string preflight = exchange(
      "OPTIONS /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOrigin: https://good.example\r\n"
      "Access-Control-Request-Method: POST\r\n\r\n");
  EXPECT_THAT(preflight, StartsWith("HTTP/1.1 204 "));
  EXPECT_THAT(preflight, HasSubstr("Access-Control-Allow-Methods: "));
}

TEST_F(HttpServerTest, ListensOnUnixSocketsAndRefusesBusyAddresses) {
  const TemporaryFolder folder;
  start();
  HttpServerOptions same = options_;
  same.port = server_->port();
  EXPECT_THROW(HttpServer(same, HttpRouter()), Error);
  HttpServerOptions local;
  local.unix_path = folder.file("socket");
  HttpServer first(local, HttpRouter());
  EXPECT_EQ(first.address(), "unix:" + local.unix_path);
  first.start();
  EXPECT_THROW(HttpServer(local, HttpRouter()), Error);
  first.stop(0);
  EXPECT_FALSE(path_exists(local.unix_path));
  write_file_atomic(local.unix_path, "a file");
  EXPECT_THROW(HttpServer(local, HttpRouter()), Error);
}

TEST_F(HttpServerTest, StopWaitsForRepliesInProgress) {
  start();
  RawClient idle(server_->port()), client(server_->port());
  client.send(post("/hold", "{}"));
  ASSERT_TRUE(begun_.wait());
  std::thread stopping([&] { server_->stop(10); });
  EXPECT_EQ(idle.receive_all(), "");
  held_->send(200, kText, "the last one");
  EXPECT_THAT(client.receive_all(), HasSubstr("the last one"));
  client.close();
  stopping.join();
  EXPECT_EQ(server_->connections(), 0);
}

TEST_F(HttpServerTest, RoutesCanBeReplacedAndOthersRefused) {
  HttpRouter loading;
  loading.refuse_others(ApiError::unavailable("loading"));
  server_ = std::make_unique<HttpServer>(options_, std::move(loading));
  server_->start();
  EXPECT_THAT(exchange(get_once("/hello")), StartsWith("HTTP/1.1 503 "));
  HttpRouter router;
  router.add("GET", "/hello", [](const HttpRequest&, const std::shared_ptr<Responder>& responder) { responder->send(200, kText, "now"); });
  server_->set_router(std::move(router));
  EXPECT_THAT(exchange(get_once("/hello")), HasSubstr("now"));
}

TEST(HttpOptions, WrongValuesAreUsageErrors) {
  const auto wrong = [](auto change) {
    HttpServerOptions options;
    change(options);
    EXPECT_THROW(check_http_options(options), UsageError);
  };
  wrong([](auto& options) { options.port = 70000; });
  wrong([](auto& options) { options.tls_key = "key.pem"; });
  wrong([](auto& options) { options.unix_path = "socket", options.port = 8081; });
  wrong([](auto& options) { options.idle_seconds = 0; });
  wrong([](auto& options) { options.max_body_bytes = 0; });
  wrong([](auto& options) { options.cors = {"good.example"}; });
  check_http_options({});
}

TEST(ApiKeys, FilesWithWrongKeysAreErrors) {
  const TemporaryFolder folder;
  const std::string path = folder.file("keys");
  EXPECT_THROW(ApiKeys{path}, Error);
  for (const char* const content : {"", "# none\n", "short\n", "with space 123\n", "same-key-1\nsame-key-1\n"}) {
    write_file_atomic(path, content);
    EXPECT_THROW(ApiKeys{path}, Error) << content;
  }
  write_file_atomic(path, "windows-key\r\nlast-key-without-newline");
  const ApiKeys keys(path);
  EXPECT_TRUE(keys.owner("windows-key"));
  EXPECT_TRUE(keys.owner("last-key-without-newline"));
  EXPECT_FALSE(keys.owner("last-key"));
  EXPECT_FALSE(keys.owner(""));
}

}  // namespace server_test
}  // namespace based
