#include "based/serve/protocol/reply_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "based/core/text.h"
#include "based/core/utf8.h"

namespace based {

void append_json(std::string_view text, std::string& out) { out += dump_json(Json(text)); }

void append_log_probability(double value, std::string& out) {
  if (!(value > -INFINITY)) {
    out += "-9999.0";
    return;
  }
  std::array<char, 32> digits{};
  char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), static_cast<size_t>(end - digits.data()));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

std::string token_text(const Tokenizer& tokenizer, int64_t id) {
  const std::string_view bytes = tokenizer.token_bytes(static_cast<int32_t>(id));
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (size_t i = 0; i < bytes.size(); ++i) text += "\\x" + hex_digits(bytes.substr(i, 1));
  return text;
}

void append_usage(const Usage& usage, std::string& out) {
  out += "{\"prompt_tokens\":" + std::to_string(usage.prompt_tokens) + ",\"completion_tokens\":" + std::to_string(usage.completion_tokens) +
         ",\"total_tokens\":" + std::to_string(usage.prompt_tokens + usage.completion_tokens) +
         ",\"prompt_tokens_details\":{\"cached_tokens\":" + std::to_string(usage.cached_tokens) + "}}";
}

void append_reply_head(const ReplyHead& head, const char* object, std::string& out) {
  out += "{\"id\":";
  append_json(head.id, out);
  out += ",\"object\":\"";
  out += object;
  out += "\",\"created\":" + std::to_string(head.created) + ",\"model\":";
  append_json(head.model, out);
  out += ",\"system_fingerprint\":";
  append_json(head.fingerprint, out);
  out += ",\"choices\":[";
}

std::string sse_event(std::string_view json) {
  std::string event = "data: ";
  event += json;
  event += "\n\n";
  return event;
}

std::string sse_error(const ApiError& error) { return sse_event(dump_json(error.to_json())); }

const char* finish_reason_text(std::string_view reason) { return reason == "stop" || reason == "end_of_text" ? "stop" : "length"; }

}  // namespace based
