// `based serve` as its clients see it, and the commands of docs/serving.md. One server is shared by most tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "tests/apps/program.h"
#include "tests/core/profile_file.h"
#include "tests/serve/http/raw_client.h"

namespace based {
namespace serve_test {

using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kSeconds = 30;  // until a test gives up

struct HttpAnswer {
  int status = 0;
  std::string header, body;
  Json json() const { return parse_json(body, "the reply"); }
};

std::string http_request(const std::string& method, const std::string& target, const std::string& body, const std::string& headers = "") {
  return method + " " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string without_chunks(const std::string& body) {
  std::string joined;
  for (size_t at = 0; at < body.size();) {
    const size_t line = body.find("\r\n", at);
    if (line == std::string::npos) break;
    const size_t size = std::stoul(body.substr(at, line - at), nullptr, 16);
    if (size == 0) break;
    joined += body.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return joined;
}

HttpAnswer parse_answer(const std::string& bytes) {
  HttpAnswer answer;
  const size_t end = bytes.find("\r\n\r\n");
  if (!bytes.starts_with("HTTP/1.1 ") || end == std::string::npos) return answer;
  answer.status = std::stoi(bytes.substr(9, 3));
  answer.header = bytes.substr(0, end + 2);
  answer.body = bytes.substr(end + 4);
  if (answer.header.find("Transfer-Encoding: chunked") != std::string::npos) answer.body = without_chunks(answer.body);
  return answer;
}

// The objects of a stream's events; the last event must be [DONE].
std::vector<Json> events_of(const HttpAnswer& answer) {
  std::vector<Json> events;
  std::istringstream lines(answer.body);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    last = line.substr(6);
    if (last != "[DONE]") events.push_back(parse_json(last, "an event"));
  }
  EXPECT_EQ(last, "[DONE]") << answer.body;
  return events;
}

// A server in the background.
class RunningServer {
 public:
  // `before`: see Started.
  RunningServer(const TemporaryFolder& folder, const std::string& name, const std::vector<std::string>& flags,
                const std::function<void()>& before = {})
      : out_(folder.file(name + ".out")), err_(folder.file(name + ".err")) {
    std::vector<std::string> arguments{"serve", "--model", folder.file("m"), "--port", "0"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    program_ = std::make_unique<Started>(arguments, out_, err_, before);
    for (const auto limit = Clock::now() + std::chrono::seconds(kSeconds); Clock::now() < limit && port_ == 0; usleep(10'000)) {
      const std::string printed = path_exists(out_) ? read_file(out_) : "";  // http://127.0.0.1:PORT
      if (printed.ends_with('\n')) port_ = std::stoi(printed.substr(printed.rfind(':') + 1));
    }
    EXPECT_GT(port_, 0) << messages();
  }

  ~RunningServer() {
    if (!has_ended_) kill();  // the test has failed
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  int port() const { return port_; }
  std::string messages() const { return read_file(err_); }
  std::unique_ptr<RawClient> send(const std::string& method, const std::string& target, const std::string& body,
                                  const std::string& headers = "") const {
    auto client = std::make_unique<RawClient>(port_);
    client->send(http_request(method, target, body, headers));
    return client;
  }
  HttpAnswer ask(const std::string& method, const std::string& target, const std::string& body = "",
                 const std::string& headers = "") const {
    return parse_answer(send(method, target, body, headers)->receive_all());
  }
  int64_t metric(const std::string& name) const {
    const std::string text = "\n" + ask("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 2));
  }
  // Waits for a value of a metric; false if it does not come.
  bool reaches(const std::string& name, int64_t value) const {
    for (const auto limit = Clock::now() + std::chrono::seconds(kSeconds); Clock::now() < limit; usleep(10'000))
      if (metric(name) == value) return true;
    return false;
  }
  void terminate() const { program_->signal(SIGTERM); }
  void kill() const {
    program_->signal(SIGKILL);
    program_->status();
    has_ended_ = true;
  }
  int exit_code() const {  // waits for the end
    const int status = program_->status_within(kSeconds);
    has_ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  std::string out_, err_;
  std::unique_ptr<Started> program_;
  mutable bool has_ended_ = false;
  int port_ = 0;
};

class Serve : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("OMP_NUM_THREADS", "1", 1);  // the tests run beside others
    folder_ = new TemporaryFolder;
    ASSERT_EQ(run("presets based-tiny --out " + file("m") + " --tokenizer bytes").code, 0);
    write_file_atomic(file("chat.jinja"), "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}");
    server_ = new RunningServer(
        *folder_, "shared", {"--slots", "4", "--max-waiting-jobs", "8", "--template", file("chat.jinja"), "--state-dir", file("states")});
    ASSERT_GT(server_->port(), 0);
  }
  static void TearDownTestSuite() {
    if (server_ != nullptr) {
      server_->terminate();
      EXPECT_EQ(server_->exit_code(), 0) << server_->messages();
    }
    delete server_;
    delete folder_;
  }

  static std::string file(const std::string& name) { return folder_->file(name); }
  static const RunningServer& server() { return *server_; }
  static HttpAnswer post(const std::string& target, const Json& body) { return server().ask("POST", target, dump_json(body)); }
  static bool is_idle() { return server().reaches("num_requests_waiting", 0) && server().reaches("slots_free", 4); }
  // Waits until the server is idle and no request has ended for 0.3 s. Requests of clients that have gone may reach the scheduler long
  // after the clients have, where other programs keep the cores busy.
  static bool becomes_quiet() {
    int64_t ended = -1, polls = 0;
    for (const auto limit = Clock::now() + std::chrono::seconds(kSeconds); Clock::now() < limit && polls < 30; usleep(10'000)) {
      const int64_t now = server().metric("request_success_total") + server().metric("request_failure_total");
      polls = now == ended && is_idle() ? polls + 1 : 0;
      ended = now;
    }
    return polls == 30;
  }

  // A request that the server would take minutes to answer.
  static std::string endless() {
    return dump_json({{"prompt", std::string(60'000, 'a')}, {"max_tokens", 60'000}, {"ignore_eos", true}, {"stream", true}});
  }

  static inline TemporaryFolder* folder_ = nullptr;
  static inline RunningServer* server_ = nullptr;
};

TEST_F(Serve, TheEndpointsAnswer) {
  EXPECT_EQ(server().ask("GET", "/health").json()["status"], "ok");
  EXPECT_EQ(server().ask("GET", "/v1/models").json()["data"][0]["id"], "m");
  EXPECT_EQ(server().ask("GET", "/tokenizer_info").json()["eos_token"], "<|endoftext|>");
  EXPECT_EQ(post("/tokenize", {{"prompt", "ab<|endoftext|>"}}).json()["tokens"], Json::array({97, 98, 256}));
  EXPECT_EQ(post("/detokenize", {{"tokens", {97, 98}}}).json()["prompt"], "ab");
  const HttpAnswer page = server().ask("GET", "/");
  EXPECT_EQ(page.body, read_file(BASED_SOURCE_DIR "/based/serve/page/index.html"));
  EXPECT_THAT(page.header, HasSubstr("text/html"));
  EXPECT_GE(server().metric("slots"), 4);
  EXPECT_EQ(server().ask("GET", "/nothing").status, 404);
  EXPECT_EQ(server().ask("GET", "/v1/completions").status, 405);
  const HttpAnswer chat =
      post("/v1/chat/completions", {{"messages", Json::array({{{"role", "user"}, {"content", " hi "}}})}, {"max_tokens", 3}});
  EXPECT_EQ(chat.status, 200) << chat.body;
  EXPECT_EQ(chat.json()["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(chat.json()["usage"]["prompt_tokens"], 9) << "user: hi and a line feed";
  EXPECT_THAT(server().ask("GET", "/health", "", "X-Request-Id: mine-1\r\n").header, HasSubstr("X-Request-Id: mine-1"));
}

TEST_F(Serve, CompletionsScoreAndGenerate) {
  const HttpAnswer scored =
      post("/v1/completions",
           {{"prompt", {{97, 98, 99}, {97}}}, {"max_tokens", 1}, {"logprobs", 1}, {"echo", true}, {"temperature", 0}, {"seed", 1234}});
  ASSERT_EQ(scored.status, 200) << scored.body;
  const Json choices = scored.json()["choices"];
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_EQ(choices[0]["logprobs"]["token_logprobs"].size(), 4U);
  EXPECT_TRUE(choices[0]["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(choices[1]["logprobs"]["top_logprobs"].size(), 2U);
  for (const char* limit : {"guided_choice", "structured_outputs"}) {
    Json request{{"prompt", "a"}, {"max_tokens", 9}, {"n", 3}};
    if (std::string(limit) == "guided_choice")
      request[limit] = Json::array({"yes", "no"});
    else
      request[limit]["regex"] = "(yes|no)!?";
    const HttpAnswer chosen = post("/v1/completions", request);
    ASSERT_EQ(chosen.status, 200) << chosen.body;
    const Json made = chosen.json();
    EXPECT_EQ(made["choices"].size(), 3U);
    for (const Json& choice : made["choices"]) {
      EXPECT_THAT(choice["text"].get<std::string>(), testing::MatchesRegex("(yes|no)!?"));
      EXPECT_EQ(choice["finish_reason"], "stop");
    }
  }
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"guided_regex", "("}}).status, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"guided_regex", "(a{1000}){1000}"}}).status, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", {-1}}}).status, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"n", 1'000'000'000}}).status, 400);
}

// The model's bytes are random: most are no UTF-8. parse_json refuses a reply that is not.
TEST_F(Serve, StreamedTextIsTheWholeText) {
  for (const int seed : {1, 2, 3}) {
    Json request{{"prompt", "\u00e9"}, {"max_tokens", 60}, {"seed", seed}, {"ignore_eos", true}};
    const Json whole = post("/v1/completions", request).json();
    request["stream"] = true;
    request["stream_options"] = {{"include_usage", true}};
    std::string text;
    Json usage;
    for (const Json& event : events_of(post("/v1/completions", request))) {
      for (const Json& choice : event["choices"]) text += choice["text"].get<std::string>();
      if (event.contains("usage") && event["usage"].is_object()) usage = event["usage"];
    }
    EXPECT_EQ(text, whole["choices"][0]["text"].get<std::string>());
    EXPECT_EQ(usage["completion_tokens"], 60);
  }
}

TEST_F(Serve, StatesAreFilesOfTheProgram) {
  const HttpAnswer stored = post("/v1/states", {{"prompt", "the cat"}, {"label", "a cat"}});
  ASSERT_EQ(stored.status, 200) << stored.body;
  const std::string id = stored.json()["id"].get<std::string>();
  EXPECT_EQ(stored.json()["position"], 7);
  write_file_atomic(file("a.state"), server().ask("GET", "/v1/states/" + id + "/content").body);
  const Ran generated = run("generate --model " + file("m") + " --state " + file("a.state") + " --max-tokens 3");
  EXPECT_EQ(generated.code, 0) << generated.err;

  ASSERT_EQ(run("state save " + file("b.state") + " --model " + file("m") + " --prompt the").code, 0);
  const std::string saved = read_file(file("b.state"));
  const HttpAnswer uploaded = server().ask("PUT", "/v1/states", saved, "Content-Type: application/octet-stream\r\n");
  ASSERT_EQ(uploaded.status, 200) << uploaded.body;
  const std::string other = uploaded.json()["id"].get<std::string>();
  EXPECT_TRUE(server().ask("GET", "/v1/states/" + other + "/content").body == saved) << "byte for byte";
  EXPECT_EQ(server().ask("PUT", "/v1/states", saved.substr(0, saved.size() / 2)).status, 400);

  const Json request{{"state", id}, {"prompt", ""}, {"max_tokens", 5}, {"temperature", 0}, {"store", true}};
  const HttpAnswer first = post("/v1/completions", request), second = post("/v1/completions", request);
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(first.json()["choices"][0]["text"], second.json()["choices"][0]["text"]) << "a state is used twice";
  EXPECT_NE(first.json()["choices"][0]["state"], second.json()["choices"][0]["state"]);
  EXPECT_EQ(server().ask("DELETE", "/v1/states/" + id).status, 200);
  EXPECT_EQ(post("/v1/completions", request).status, 404);

  const HttpAnswer response = post("/v1/responses", {{"input", "ab"}, {"max_output_tokens", 4}});
  ASSERT_EQ(response.status, 200) << response.body;
  const std::string response_id = response.json()["id"].get<std::string>();
  EXPECT_EQ(post("/v1/responses", {{"input", "c"}, {"previous_response_id", response_id}, {"max_output_tokens", 4}}).status, 200);
  EXPECT_EQ(server().ask("GET", "/v1/responses/" + response_id).json()["id"], response_id);
  EXPECT_EQ(server().ask("DELETE", "/v1/responses/" + response_id).status, 200);
}

TEST_F(Serve, AClientThatGoesFreesItsSlot) {
  using Go = void (*)(RawClient&);
  for (const Go go : {Go([](RawClient& client) { client.close(); }), Go([](RawClient& client) { client.reset(); }),
                      Go([](RawClient& client) { client.half_close(); })}) {
    ASSERT_TRUE(is_idle());
    const auto client = server().send("POST", "/v1/completions", endless());
    ASSERT_TRUE(server().reaches("num_requests_running", 1));
    EXPECT_EQ(server().ask("GET", "/health").status, 200) << "during a long prompt";
    go(*client);
    EXPECT_TRUE(server().reaches("num_requests_running", 0));
  }
}

TEST_F(Serve, ManyAbortedClientsLeaveAllSlotsFree) {
  for (int i = 0; i < 200; ++i) {
    const auto client =
        server().send("POST", "/v1/completions", dump_json({{"prompt", "a"}, {"max_tokens", 60'000}, {"ignore_eos", true}}));
    i % 2 == 0 ? client->close() : client->reset();
  }
  ASSERT_TRUE(becomes_quiet());
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}}).status, 200);
}

TEST_F(Serve, OverloadIsRefusedWithRetryAfter) {
  ASSERT_TRUE(is_idle());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 12; ++i) {  // four slots, eight that wait
    clients.push_back(server().send("POST", "/v1/completions", dump_json({{"prompt", "a"}, {"max_tokens", 60'000}, {"ignore_eos", true}})));
    if (i < 4) {
      ASSERT_TRUE(server().reaches("num_requests_running", i + 1));
    }
  }
  ASSERT_TRUE(server().reaches("num_requests_waiting", 8));
  const HttpAnswer refused = post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}});
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_THAT(refused.header, HasSubstr("Retry-After: "));
  clients.clear();
  ASSERT_TRUE(is_idle());
  EXPECT_EQ(post("/v1/completions", {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
}

TEST_F(Serve, HostileRequestsGetAStatus) {
  for (const std::string& body : {std::string(100'000, '['), std::string("{\"prompt\": \"\xff\"}"),
                                  std::string("{\"prompt\": \"a\", \"prompt\": \"b\"}"), std::string(), std::string("null")})
    EXPECT_EQ(server().ask("POST", "/v1/completions", body).status, 400) << body.substr(0, 40);
  EXPECT_EQ(parse_answer(server().send("POST", "/v1/completions", "", "Transfer-Encoding: chunked\r\n")->receive_all()).status, 400)
      << "two lengths of one body";
  EXPECT_EQ(server().ask("GET", "/health", "", "X-Long: " + std::string(20'000, 'a') + "\r\n").status, 431);
  EXPECT_EQ(server().ask("GET", "/health").status, 200);
}

TEST_F(Serve, KeysOwnTheirStatesAndSigtermDrains) {
  write_file_atomic(file("keys"), "first-key-1\nother-key-2\n");
  const RunningServer own(*folder_, "keys", {"--api-keys", file("keys")});
  const std::string first = "Authorization: Bearer first-key-1\r\n", other = "X-Api-Key: other-key-2\r\n";
  const std::string prompt = dump_json({{"prompt", "ab"}});
  EXPECT_EQ(own.ask("POST", "/v1/states", prompt).status, 401);
  EXPECT_EQ(own.ask("POST", "/v1/states", prompt, "Authorization: Bearer wrong-key-3\r\n").status, 401);
  EXPECT_EQ(own.ask("GET", "/tokenizer_info").status, 200) << "lm-eval sends no key here";
  const HttpAnswer stored = own.ask("POST", "/v1/states", prompt, first);
  ASSERT_EQ(stored.status, 200) << stored.body;
  const std::string place = "/v1/states/" + stored.json()["id"].get<std::string>();
  EXPECT_EQ(own.ask("GET", place, "", first).status, 200);
  EXPECT_EQ(own.ask("GET", place, "", other).status, 404);
  EXPECT_EQ(own.ask("GET", place + "/content", "", other).status, 404);

  const auto client =
      own.send("POST", "/v1/completions", dump_json({{"prompt", "a"}, {"max_tokens", 500}, {"ignore_eos", true}, {"stream", true}}), first);
  std::string bytes = client->receive_until("data: ");
  own.terminate();
  bytes += client->receive_all();
  EXPECT_THAT(bytes, HasSubstr("data: [DONE]")) << "the request in progress ends";
  EXPECT_EQ(own.exit_code(), 0) << own.messages();
}

TEST_F(Serve, AProfileHasARowForEachRequestAndEachJob) {
  const RunningServer own(*folder_, "profiled", {"--profile", file("p.json")});
  const Json body{{"prompt", "the cat"}, {"max_tokens", 3}, {"ignore_eos", true}};
  EXPECT_EQ(own.ask("POST", "/v1/completions", dump_json(body), "X-Request-Id: mine\r\n").status, 200);
  own.terminate();
  EXPECT_EQ(own.exit_code(), 0) << own.messages();
  const ProfileFile profile(file("p.json"));
  std::set<std::string> spans;
  for (const Json& span : profile.events("b"))
    if (span.at("args").value("request", "") == "mine")
      spans.insert(span.at("cat").get<std::string>() + " " + span.at("name").get<std::string>());
  EXPECT_EQ(spans, std::set<std::string>(
                       {"request request", "request read", "request write", "job job", "job queue", "job prompt", "job decode"}));
  EXPECT_EQ(profile.names("e").size(), profile.names("b").size());
  const std::vector<std::string> paths = profile.paths();
  EXPECT_THAT(paths, testing::IsSupersetOf({"handle request", "prefill/layers.0/mlp", "step/layers.2/mlp", "step/sample", "detokenize"}));
}

// A kill while states are being stored: afterwards, every state whose id was returned is listed, and every listed state is whole.
TEST_F(Serve, AKilledServerLosesNoStoredState) {
  const std::vector<std::string> flags{"--state-dir", file("killed"), "--states-memory-bytes", "1"};
  std::set<std::string> returned;
  for (int round = 0; round < 3; ++round) {
    const RunningServer own(*folder_, "killed-" + std::to_string(round), flags);
    std::mutex mutex;
    std::vector<std::thread> clients;
    for (int c = 0; c < 3; ++c)
      clients.emplace_back([&, c] {
        for (int i = 0;; ++i) {
          const std::string prompt = "client " + std::to_string(c) + " prompt " + std::to_string(i);
          std::string id;
          try {
            id = own.ask("POST", "/v1/states", dump_json({{"prompt", prompt}})).json()["id"].get<std::string>();
          } catch (const std::exception&) {  // the server is gone, or was killed within its reply
            return;
          }
          const std::lock_guard lock(mutex);
          returned.insert(id);
        }
      });
    const auto stored = [&] {
      const std::lock_guard lock(mutex);
      return returned.size();
    };
    const size_t enough = stored() + 15 + static_cast<size_t>(round);
    for (const auto limit = Clock::now() + std::chrono::seconds(kSeconds); Clock::now() < limit && stored() < enough;) usleep(1000);
    own.kill();
    for (std::thread& client : clients) client.join();
    EXPECT_GE(returned.size(), enough);
  }
  const RunningServer own(*folder_, "restarted", flags);
  std::set<std::string> listed;
  const Json states = own.ask("GET", "/v1/states").json();
  for (const Json& state : states["data"]) listed.insert(state["id"].get<std::string>());
  EXPECT_TRUE(std::includes(listed.begin(), listed.end(), returned.begin(), returned.end()));
  for (const std::string& id : listed) {
    const HttpAnswer used = own.ask("POST", "/v1/completions", dump_json({{"state", id}, {"prompt", ""}, {"max_tokens", 1}}));
    EXPECT_EQ(used.status, 200) << used.body;
  }
  EXPECT_EQ(names_in(file("killed") + "/states").size(), 2 * listed.size()) << "no half-written file is left";
  own.terminate();
  EXPECT_EQ(own.exit_code(), 0) << own.messages();
}

// Files cannot grow beyond 4 KiB, as if the disk were full. A state has more.
TEST_F(Serve, AFullDiskFailsTheRequestOnly) {
  const RunningServer own(*folder_, "full", {"--state-dir", file("full")}, [] {
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  const auto ask = [&](const std::string& target, const Json& body) { return own.ask("POST", target, dump_json(body)); };
  const HttpAnswer state = ask("/v1/states", {{"prompt", "ab"}});
  EXPECT_EQ(state.status, 500);
  EXPECT_EQ(state.json()["error"]["type"], "server_error") << state.body;
  EXPECT_THAT(own.messages(), HasSubstr("File too large"));
  EXPECT_THAT(state.body, testing::Not(HasSubstr(file("")))) << "clients learn no paths of the server";
  EXPECT_EQ(ask("/v1/completions", {{"prompt", "ab"}, {"max_tokens", 2}, {"store", true}}).status, 500);
  EXPECT_EQ(ask("/v1/responses", {{"input", "ab"}, {"max_output_tokens", 2}}).status, 500);
  const HttpAnswer stream = ask("/v1/completions", {{"prompt", "ab"}, {"max_tokens", 2}, {"store", true}, {"stream", true}});
  EXPECT_EQ(stream.status, 200);
  EXPECT_THAT(stream.body, HasSubstr(R"("error")"));
  EXPECT_EQ(ask("/v1/completions", {{"prompt", "ab"}, {"max_tokens", 2}}).status, 200);
  EXPECT_EQ(own.ask("GET", "/v1/states").json()["data"].size(), 0U);
  EXPECT_EQ(names_in(file("full") + "/states").size(), 0U);
  own.terminate();
  EXPECT_EQ(own.exit_code(), 0) << own.messages();
}

// After SIGTERM, streams in progress have --drain-seconds and then end with an error; new requests get 503.
TEST_F(Serve, DrainingHasALimit) {
  const RunningServer own(*folder_, "drain", {"--drain-seconds", "3", "--max-write-queue-bytes", "1000000000"});
  const auto client =
      own.send("POST", "/v1/completions", dump_json({{"prompt", "a"}, {"max_tokens", 60'000}, {"ignore_eos", true}, {"stream", true}}));
  std::string bytes = client->receive_until("data: ");
  own.terminate();
  int status = 0;
  while ((status = own.ask("GET", "/health").status) == 200) usleep(1000);
  EXPECT_EQ(status, 503);
  EXPECT_EQ(own.ask("POST", "/v1/completions", dump_json({{"prompt", "a"}})).status, 503);
  bytes += client->receive_all();
  EXPECT_THAT(bytes, HasSubstr("shutting down"));
  EXPECT_EQ(own.exit_code(), 0) << own.messages();
}

// A body of 2,000 bytes is refused, a state of more is not.
TEST_F(Serve, StatesMayExceedTheBodyLimit) {
  const RunningServer own(*folder_, "body", {"--max-body-bytes", "2000"});
  const std::string large(3000, 'a');
  EXPECT_EQ(own.ask("POST", "/v1/completions", dump_json({{"prompt", large}, {"max_tokens", 1}})).status, 413);
  const std::string id = own.ask("POST", "/v1/states", dump_json({{"prompt", "ab"}})).json()["id"].get<std::string>();
  const std::string content = own.ask("GET", "/v1/states/" + id + "/content").body;
  EXPECT_GT(content.size(), 4096U);
  EXPECT_EQ(own.ask("PUT", "/v1/states", content).status, 200);
  Json request{{"input", "ab"}, {"max_output_tokens", 2}, {"store", false}, {"include", {"reasoning.encrypted_content"}}};
  const Json first = own.ask("POST", "/v1/responses", dump_json(request)).json();
  request["input"] = first["output"];
  const HttpAnswer second = own.ask("POST", "/v1/responses", dump_json(request));
  EXPECT_EQ(second.status, 200) << second.body;
  own.terminate();
  EXPECT_EQ(own.exit_code(), 0) << own.messages();
}

// The commands of docs/serving.md, with this server's address, program and model.
TEST_F(Serve, TheDocumentsCommandsWork) {
  std::istringstream lines(read_file(BASED_SOURCE_DIR "/docs/serving.md"));
  std::string script = "set -euo pipefail\ncd " + file("") + "\n";
  bool inside = false;
  int commands = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      inside = line == "```bash";
      continue;
    }
    if (!inside) continue;
    commands += line.find("curl") != std::string::npos ? 1 : 0;
    for (const auto& [written, used] : std::vector<std::pair<std::string, std::string>>{
             {"127.0.0.1:8080", "127.0.0.1:" + std::to_string(server().port())}, {"bin/based", BASED_PROGRAM}, {"out/demo", file("m")}}) {
      for (size_t at = line.find(written); at != std::string::npos; at = line.find(written, at + used.size()))
        line.replace(at, written.size(), used);
    }
    script += line + "\n";
  }
  EXPECT_GE(commands, 12);
  write_file_atomic(file("document.sh"), script);
  const std::string log = file("document.log");
  const int status = std::system(("bash " + file("document.sh") + " >" + log + " 2>&1").c_str());
  EXPECT_EQ(status, 0) << read_file(log);
}

}  // namespace serve_test
}  // namespace based
