// A reply that a test reads, and a server without a network.
#pragma once
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "based/serve/endpoints/chats.h"
#include "based/serve/endpoints/model_endpoints.h"
#include "based/serve/service/metrics.h"
#include "tests/generate/texts.h"

namespace based {

class RecordedReply final : public Responder {
 public:
  void send(int status, std::string_view type, std::string body, const HttpHeaders& extra) override {
    const std::scoped_lock lock(mutex_);
    status_ = status;
    type_ = type;
    body_ = std::move(body);
    headers_ = extra;
    complete_ = true;
    changed_.notify_all();
  }
  void begin_stream(int status, std::string_view type, const HttpHeaders& extra) override {
    const std::scoped_lock lock(mutex_);
    status_ = status;
    type_ = type;
    headers_ = extra;
  }
  bool write(std::string chunk) override {
    const std::scoped_lock lock(mutex_);
    body_ += chunk;
    changed_.notify_all();
    return !closed_;
  }
  void end() override {
    const std::scoped_lock lock(mutex_);
    complete_ = true;
    changed_.notify_all();
  }
  void on_close(std::function<void()> callback) override {
    const std::scoped_lock lock(mutex_);
    on_close_ = std::move(callback);
  }
  bool closed() const override {
    const std::scoped_lock lock(mutex_);
    return closed_;
  }

  bool is_written(std::function<void()>) override {
    const std::scoped_lock lock(mutex_);
    return !held_;
  }
  // From now on, no bytes reach the client.
  void hold() {
    const std::scoped_lock lock(mutex_);
    held_ = true;
  }

  void close() {
    std::function<void()> callback;
    {
      const std::scoped_lock lock(mutex_);
      closed_ = true;
      callback = on_close_;
    }
    if (callback) callback();
  }
  // False if the reply, or a part of it that contains `text`, does not come within a minute.
  bool wait(const std::string& text = "") {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1),
                             [&] { return text.empty() ? complete_ : body_.find(text) != std::string::npos; });
  }
  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& body() const { return body_; }
  Json json() const { return parse_json(body_, "reply"); }
  // The data of each event; nothing if the body has anything else.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    const std::string prefix = "data: ", end = "\n\n";
    for (size_t at = 0; at < body_.size();) {
      const size_t next = body_.find(end, at);
      if (next == std::string::npos || body_.compare(at, prefix.size(), prefix) != 0) return {};
      out.push_back(body_.substr(at + prefix.size(), next - at - prefix.size()));
      at = next + end.size();
    }
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int status_ = 0;
  std::string type_, body_;
  HttpHeaders headers_;
  std::function<void()> on_close_;
  bool complete_ = false, closed_ = false, held_ = false;
};

inline TextModel bytes_model() {
  TextModel model;
  model.tokenizer = std::make_unique<ByteTokenizer>();
  model.model = distinct_model(torch::kCPU);
  model.hash = "0123456789abcdef0123456789abcdef";
  return model;
}

// The endpoints of a tiny model of bytes, called as the HTTP server calls them.
class ServerWithoutNetwork {
 public:
  explicit ServerWithoutNetwork(ServedModelOptions options = {.name = "tiny"}, const ServiceOptions& service = {.slots = 4})
      : model_(bytes_model()),
        served_(model_, std::move(options)),
        states_(*model_.model, model_.hash, {}),
        service_(model_, service, nullptr, metrics_) {
    add_model_routes(router_, served_);
    add_completion_routes(router_, context());
    add_chat_routes(router_, context());
  }

  LanguageModel& model() { return *model_.model; }
  const TextModel& text_model() const { return model_; }
  Service& service() { return service_; }
  const HttpRouter& router() const { return router_; }
  StateStore& states() { return states_; }
  GenerationContext context() { return {served_, service_, queue_, &states_}; }

  std::shared_ptr<RecordedReply> start(const std::string& method, const std::string& path, const std::string& body = "",
                                       std::shared_ptr<RecordedReply> reply = std::make_shared<RecordedReply>()) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    request.body = body;
    request.id = "req_1";
    const HttpRouter::Match match = router_.find(method, path);
    request.captured = match.captured;
    try {
      if (match.handler == nullptr) throw ApiError::not_found("", "no such path");
      (*match.handler)(request, reply);
    } catch (const ApiError& error) {
      reply_error(*reply, error);
    }
    return reply;
  }
  std::shared_ptr<RecordedReply> post(const std::string& path, const std::string& body) {
    auto reply = start("POST", path, body);
    if (!reply->wait()) throw Error("no reply");
    return reply;
  }
  std::shared_ptr<RecordedReply> complete(const std::string& body) { return post("/v1/completions", body); }

 private:
  TextModel model_;
  ServedModel served_;
  StateStore states_;
  ServiceMetrics metrics_;
  TaskQueue queue_{2};
  Service service_;
  HttpRouter router_;
};

}  // namespace based
