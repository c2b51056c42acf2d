#include "based/serve/protocol/api_error.h"

#include <utility>

namespace based {

ApiError::ApiError(int status, std::string type, const std::string& message, std::string param, std::string code)
    : Error(message), status_(status), type_(std::move(type)), param_(std::move(param)), code_(std::move(code)) {}

Json ApiError::to_json() const {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  Json error = Json::object();
  error["message"] = what();
  error["type"] = type_;
  error["param"] = text_or_null(param_);
  error["code"] = text_or_null(code_);
  Json reply = Json::object();
  reply["error"] = std::move(error);
  return reply;
}

ApiError ApiError::invalid(const std::string& param, const std::string& message) {
  return {400, "invalid_request_error", message, param, "invalid_value"};
}

ApiError ApiError::unsupported(const std::string& param, const std::string& message) {
  return {400, "invalid_request_error", message, param, "unsupported"};
}

ApiError ApiError::exceeds_context(const std::string& message) {
  return {400, "exceed_context_size_error", message, "prompt", "context_length_exceeded"};
}

ApiError ApiError::unauthorized(const std::string& message) { return {401, "authentication_error", message, "", "invalid_api_key"}; }

ApiError ApiError::not_found(const std::string& param, const std::string& message) {
  return {404, "not_found_error", message, param, "not_found"};
}

ApiError ApiError::wrong_method(const std::string& message) { return {405, "invalid_request_error", message, "", "method_not_allowed"}; }

ApiError ApiError::conflict(const std::string& param, const std::string& message) {
  return {409, "conflict_error", message, param, "conflict"};
}

ApiError ApiError::too_large(const std::string& param, const std::string& message) {
  return {413, "invalid_request_error", message, param, "too_large"};
}

ApiError ApiError::overloaded(const std::string& message, int retry_after) {
  ApiError error(429, "rate_limit_error", message, "", "queue_full");
  error.retry_after_ = retry_after;
  return error;
}

ApiError ApiError::failed(const std::string& message) { return {500, "server_error", message, "", "internal_error"}; }

ApiError ApiError::unavailable(const std::string& message) { return {503, "unavailable_error", message, "", "unavailable"}; }

}  // namespace based
