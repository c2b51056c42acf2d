// The requests, objects and events of /v1/responses, as OpenAI's client libraries expect them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "based/serve/protocol/generation_fields.h"
#include "based/serve/protocol/reply_text.h"

namespace based {

struct ResponseRequest {
  GenerationFields generation;  // without stored states
  std::string text;             // new text: all of it, or that after the sealed state
  std::string sealed;           // the content of the last item with encrypted_content, "" if there is none
  std::string previous;         // previous_response_id, "" if there is none
  bool store = true;
  bool store_is_set = false;  // the request names it
  bool include_sealed = false;
  std::optional<int64_t> ttl_seconds;
  Json metadata = Json::object();
};

inline constexpr int64_t kDefaultResponseTokens = 256;

// The input is text, or a list of items. Items before the last one with encrypted_content are part of that state already. All later ones
// must be messages of the user; their contents are joined without a separator. Throws ApiError.
ResponseRequest parse_response_request(const Json& request, const RequestLimits& limits, const ModelFacts& model);

// The state of a response that is being made. Its JSON is the object of replies, of events and of GET /v1/responses/ID.
struct ResponseObject {
  std::string id, message_id, sealed_id;  // "resp_…", "msg_…", "rs_…"
  int64_t created = 0;
  std::string model;
  std::string status = "in_progress";  // completed, incomplete, failed
  std::string incomplete_reason;       // set for status incomplete
  std::string text, sealed, state;     // state: the id of the stored state
  bool has_text = false;               // the message is complete and part of the output
  std::optional<Usage> usage;
  ResponseRequest request;

  Json to_json() const;
  Json message(const char* status) const;  // the output item with the text
  Json text_part() const;                  // its content
  Json sealed_item() const;                // the output item with the sealed state
};

// The events of one stream, with ascending sequence numbers.
class ResponseEvents {
 public:
  std::string begin(const ResponseObject& response);  // up to the text's first delta
  std::string delta(const ResponseObject& response, const std::string& text);
  std::string end(const ResponseObject& response);  // from the end of the text to response.completed or response.incomplete
  std::string error(const ApiError& error);

 private:
  std::string event(const char* type, const Json& members);
  int64_t number_ = 0;
};

}  // namespace based
