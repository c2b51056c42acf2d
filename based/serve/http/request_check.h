// The checks of a request's header that decide whether and how it is answered, before its body is read.
#pragma once
#include <optional>
#include <string>

#include "based/serve/http/api_keys.h"
#include "based/serve/http/options.h"
#include "based/serve/http/router.h"
#include "based/serve/protocol/api_error.h"

namespace based {

// A request whose header has been read.
struct CheckedRequest {
  HttpRequest request;                   // without body
  const HttpHandler* handler = nullptr;  // null: `refusal` or `is_preflight`
  Access access = Access::with_key;
  int64_t max_body_bytes = 0;
  bool is_preflight = false;  // OPTIONS: the reply is 204
  bool expects_continue = false;
  HttpHeaders reply_headers;  // headers that every reply to it has: CORS, Allow
  std::optional<ApiError> refusal;
  bool must_close = false;  // the connection's later bytes cannot be trusted
};

// `request` has method, headers and remote; `target` is its target. `http_1_0`: the request is not of HTTP/1.1.
CheckedRequest check_request(HttpRequest request, std::string_view target, bool http_1_0, const HttpServerOptions& options,
                             const HttpRouter& router, const ApiKeys& keys);

// X-Request-Id if it has 1 to 128 visible ASCII characters, otherwise a random id.
std::string request_id_of(std::string_view header);

}  // namespace based
