#include "based/serve/endpoints/http_reply.h"

#include <utility>

namespace based {

void reply_error(Responder& responder, const ApiError& error) {
  HttpHeaders headers;
  if (error.retry_after() > 0) headers.emplace_back("Retry-After", std::to_string(error.retry_after()));
  responder.send(error.status(), kJsonType, dump_json(error.to_json()), headers);
}

void HttpGenerationReply::begin() {
  if (!streams_) return;
  responder_->begin_stream(200, kEventStreamType);
  began_ = true;
}

void HttpGenerationReply::failed(const ApiError& error) {
  if (!began_) {
    reply_error(*responder_, error);
    return;
  }
  responder_->write(sse_error(error));
  responder_->end();
}

void HttpGenerationReply::end_stream(std::string usage_event) {
  if (include_usage_) responder_->write(std::move(usage_event));
  responder_->write(kSseDone);
  responder_->end();
}

void HttpGenerationReply::send(std::string json) { responder_->send(200, kJsonType, std::move(json)); }

}  // namespace based
