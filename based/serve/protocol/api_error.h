// The errors of the HTTP interface, in OpenAI's form: {"error": {"message", "type", "param", "code"}}.
#pragma once
#include <string>

#include "based/core/json.h"

namespace based {

// A request that cannot be served. Endpoints throw it before their reply has begun. Clients repeat a request after 408, 409, 429 and from
// 500 on, so a status below that must mean a permanent error.
class ApiError : public Error {
 public:
  ApiError(int status, std::string type, const std::string& message, std::string param = "", std::string code = "");

  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& param() const { return param_; }  // the request's field, "" if there is none
  const std::string& code() const { return code_; }    // a fixed word for programs, "" if there is none
  // Seconds for the header Retry-After; 0: the header is not sent.
  int retry_after() const { return retry_after_; }

  // {"error": {…}}; an empty `param` or `code` is null.
  Json to_json() const;

  static ApiError invalid(const std::string& param, const std::string& message);      // 400
  static ApiError unsupported(const std::string& param, const std::string& message);  // 400, code "unsupported"
  static ApiError exceeds_context(const std::string& message);                        // 400, exceed_context_size_error
  static ApiError unauthorized(const std::string& message);                           // 401
  static ApiError not_found(const std::string& param, const std::string& message);    // 404
  static ApiError wrong_method(const std::string& message);                           // 405
  static ApiError conflict(const std::string& param, const std::string& message);     // 409, never solved by repeating the request
  static ApiError too_large(const std::string& param, const std::string& message);    // 413
  static ApiError overloaded(const std::string& message, int retry_after);            // 429 with Retry-After
  static ApiError failed(const std::string& message);                                 // 500
  static ApiError unavailable(const std::string& message);                            // 503

 private:
  int status_;
  std::string type_, param_, code_;
  int retry_after_ = 0;
};

}  // namespace based
