// The parts of JSON replies that every endpoint has. Replies are written as text, not as a tree: one with the log-probabilities of a batch
// of prompts has tens of megabytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "based/core/json.h"
#include "based/data/tokenizer.h"
#include "based/serve/protocol/api_error.h"

namespace based {

void append_json(std::string_view text, std::string& out);  // a JSON string; invalid UTF-8 becomes U+FFFD
// A number that a reader parses to the same double, always with a decimal point or an exponent. Minus infinity, which JSON lacks, is
// -9999.0.
void append_log_probability(double value, std::string& out);

// A token of a reply, its log-probability and the most likely tokens in its place.
struct ScoredToken {
  int64_t id = 0;
  bool has_log_probability = true;  // false for the first token of a sequence, which nothing predicts
  double log_probability = 0;
  std::vector<std::pair<int64_t, double>> top;  // id and log-probability, the most likely first
};

// The text of a token as a key of a reply: its bytes as text, or bytes:\xe2\x80 if these are not valid UTF-8.
std::string token_text(const Tokenizer& tokenizer, int64_t id);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};
// {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details": {"cached_tokens"}}
void append_usage(const Usage& usage, std::string& out);

// The members that all replies and chunks of one request have.
struct ReplyHead {
  std::string id;  // "cmpl-…"
  int64_t created = 0;
  std::string model;
  std::string fingerprint;
};
// {"id": …, "object": …, "created": …, "model": …, "system_fingerprint": …, "choices":[
void append_reply_head(const ReplyHead& head, const char* object, std::string& out);

// Events of a stream (text/event-stream).
std::string sse_event(std::string_view json);  // data: {…}\n\n
std::string sse_error(const ApiError& error);
inline constexpr const char* kSseDone = "data: [DONE]\n\n";

// "stop" or "length", from a finish reason of the engine: length, stop, end_of_text, cache_full, positions.
const char* finish_reason_text(std::string_view reason);

}  // namespace based
