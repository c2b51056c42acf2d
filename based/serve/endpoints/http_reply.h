// The parts of a generation's reply that do not depend on its format.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "based/serve/endpoints/generation_run.h"

namespace based {

// Sends the error's JSON, with the header Retry-After if the error has one.
void reply_error(Responder& responder, const ApiError& error);

inline constexpr const char* kJsonType = "application/json";
inline constexpr const char* kEventStreamType = "text/event-stream";

// A reply that is either one JSON object or a stream of events that ends with data: [DONE].
class HttpGenerationReply : public GenerationReply {
 public:
  HttpGenerationReply(const GenerationFields& fields, std::shared_ptr<Responder> responder)
      : streams_(fields.stream), include_usage_(fields.include_usage), responder_(std::move(responder)) {}

  void begin() override;  // a stream's header
  bool is_written(std::function<void()> callback) override { return !began_ || responder_->is_written(std::move(callback)); }
  void failed(const ApiError& error) override;  // an event after begin(), otherwise a reply with the error's status

 protected:
  bool streams() const { return streams_; }
  bool include_usage() const { return include_usage_; }
  void write(std::string event) { responder_->write(std::move(event)); }
  void end_stream(std::string usage_event);  // sent if the request wants the usage
  void send(std::string json);

 private:
  bool streams_, include_usage_;
  bool began_ = false;
  std::shared_ptr<Responder> responder_;
};

}  // namespace based
