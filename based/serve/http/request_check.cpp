#include "based/serve/http/request_check.h"

#include <algorithm>

#include "based/core/text.h"
#include "based/serve/http/request_target.h"
#include "based/serve/protocol/identifiers.h"

namespace based {
namespace {

constexpr size_t kMaxIdBytes = 128;

std::vector<std::string_view> header_values(const HttpRequest& request, std::string_view name) {
  std::vector<std::string_view> values;
  for (const auto& [key, value] : request.headers)
    if (equal_ignoring_case(key, name)) values.push_back(value);
  return values;
}

// Why the request's length or receiver is ambiguous; empty if it is not.
std::string ambiguity(const HttpRequest& request, bool http_1_0) {
  const auto lengths = header_values(request, "Content-Length"), codings = header_values(request, "Transfer-Encoding"),
             hosts = header_values(request, "Host");
  if (lengths.size() > 1) return "several Content-Length headers";
  if (!lengths.empty() && !codings.empty()) return "both Content-Length and Transfer-Encoding";
  if (!lengths.empty() &&
      (lengths[0].empty() || !std::all_of(lengths[0].begin(), lengths[0].end(), [](char c) { return c >= '0' && c <= '9'; })))
    return "a Content-Length that is not a number";
  if (codings.size() > 1) return "several Transfer-Encoding headers";
  if (!codings.empty() && http_1_0) return "Transfer-Encoding in a request of HTTP/1.0";
  if (hosts.size() > 1) return "several Host headers";
  if (hosts.empty() && !http_1_0) return "no Host header";
  return {};
}

std::string_view key_of(const HttpRequest& request) {
  static constexpr std::string_view kBearer = "Bearer ";
  const std::string_view authorization = request.header("Authorization");
  if (authorization.size() >= kBearer.size() && equal_ignoring_case(authorization.substr(0, kBearer.size()), kBearer)) {
    const std::string_view key = authorization.substr(kBearer.size());
    if (!key.empty()) return key;
  }
  return request.header("X-Api-Key");
}

void add_cors(const HttpRequest& request, const std::vector<std::string>& allowed, HttpHeaders& headers) {
  if (allowed.empty()) return;
  headers.emplace_back("Vary", "Origin");
  const std::string_view origin = request.header("Origin");
  if (origin.empty()) return;
  const bool listed = std::find(allowed.begin(), allowed.end(), origin) != allowed.end();
  const bool any = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  if (!listed && !any) return;
  headers.emplace_back("Access-Control-Allow-Origin", listed ? std::string(origin) : "*");
  headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (request.method != "OPTIONS") return;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE");
  headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Request-Id");
  headers.emplace_back("Access-Control-Max-Age", "600");
}

std::string joined_methods(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void find_route(CheckedRequest& checked, const HttpRouter& router) {
  HttpRequest& request = checked.request;
  HttpRouter::Match match = router.find(request.method, request.path);
  if (match.methods.empty()) {
    checked.refusal = router.refusal();
    if (!checked.refusal) checked.refusal = ApiError::not_found("", "no such path: " + in_quotes(request.path));
    return;
  }
  match.methods.emplace_back("OPTIONS");
  if (request.method == "OPTIONS") {
    checked.is_preflight = true;
    checked.reply_headers.emplace_back("Allow", joined_methods(match.methods));
  } else if (match.handler == nullptr) {
    checked.reply_headers.emplace_back("Allow", joined_methods(match.methods));
    checked.refusal = ApiError::wrong_method(in_quotes(request.path) + " has no method " + in_quotes(request.method));
  } else {
    checked.handler = match.handler;
    checked.access = match.access;
    if (match.max_body_bytes >= 0) checked.max_body_bytes = match.max_body_bytes;
    request.captured = std::move(match.captured);
  }
}

void check_key(CheckedRequest& checked, const ApiKeys& keys) {
  if (checked.handler == nullptr) return;
  const std::string_view key = key_of(checked.request);
  const std::optional<std::string> owner = keys.owner(key);
  checked.request.owner = owner.value_or("");
  if (owner || checked.access != Access::with_key) return;
  checked.handler = nullptr;
  checked.reply_headers.emplace_back("WWW-Authenticate", "Bearer");
  checked.refusal = ApiError::unauthorized(key.empty() ? "this server needs an API key: send the header Authorization: Bearer KEY"
                                                       : "the API key is not one of this server's");
}

void check_content_coding(CheckedRequest& checked) {
  const std::string_view coding = checked.request.header("Content-Encoding");
  if (checked.handler == nullptr || coding.empty() || equal_ignoring_case(coding, "identity")) return;
  checked.handler = nullptr;
  checked.reply_headers.emplace_back("Accept-Encoding", "identity");
  checked.refusal =
      ApiError(415, "invalid_request_error", "the content coding " + in_quotes(coding) + " is not supported; send the body as it is");
}

}  // namespace

std::string request_id_of(std::string_view header) {
  if (!header.empty() && header.size() <= kMaxIdBytes &&
      std::all_of(header.begin(), header.end(), [](char c) { return c > ' ' && c <= '~'; }))
    return std::string(header);
  return "req_" + random_hex(12);
}

CheckedRequest check_request(HttpRequest request, std::string_view target, bool http_1_0, const HttpServerOptions& options,
                             const HttpRouter& router, const ApiKeys& keys) {
  CheckedRequest checked;
  checked.max_body_bytes = options.max_body_bytes;
  request.id = request_id_of(request.header("X-Request-Id"));
  add_cors(request, options.cors, checked.reply_headers);
  checked.request = std::move(request);
  const auto refuse = [&](ApiError error) {
    checked.refusal = std::move(error);
    checked.must_close = true;
    return checked;
  };
  if (const std::string reason = ambiguity(checked.request, http_1_0); !reason.empty())
    return refuse(ApiError::invalid("", "the request has " + reason));
  const std::string_view coding = checked.request.header("Transfer-Encoding");
  if (!coding.empty() && !equal_ignoring_case(coding, "chunked"))
    return refuse(ApiError(501, "invalid_request_error", "the transfer coding " + in_quotes(coding) + " is not implemented; use chunked"));
  const std::string_view expect = checked.request.header("Expect");
  checked.expects_continue = equal_ignoring_case(expect, "100-continue");
  if (!expect.empty() && !checked.expects_continue)
    return refuse(ApiError(417, "invalid_request_error", "the expectation " + in_quotes(expect) + " cannot be met"));
  if (target == "*" && checked.request.method == "OPTIONS") {
    checked.is_preflight = true;
    return checked;
  }
  // An authority that is not the Host header's is refused: two servers could read such a request differently.
  const std::optional<RequestTarget> parts = parse_target(without_authority(target, checked.request.header("Host")));
  if (!parts) return refuse(ApiError::invalid("", "the request's target must be a path, such as /v1/models, not " + in_quotes(target)));
  checked.request.path = parts->path;
  checked.request.query = parts->query;
  find_route(checked, router);
  check_key(checked, keys);
  check_content_coding(checked);
  return checked;
}

}  // namespace based
