// The bytes of an HTTP request's header: the scanner's result does not depend on how they are divided, and a target is read in one way.
#include <algorithm>
#include <string>

#include "based/serve/http/header_scanner.h"
#include "based/serve/http/request_check.h"
#include "based/serve/http/request_target.h"
#include "tests/fuzz/fuzz.h"

namespace based {
namespace {

constexpr size_t kLimit = 4096;

HeaderScanner::Result scan_in_pieces(std::string_view bytes, size_t piece) {
  HeaderScanner scanner(kLimit);
  auto result = HeaderScanner::Result::incomplete;
  for (size_t at = 0; at < bytes.size() && result == HeaderScanner::Result::incomplete; at += piece)
    result = scanner.scan(bytes.substr(at, piece));
  return result;
}

void check_target(std::string_view target) {
  const std::optional<RequestTarget> parsed = parse_target(target);
  if (!parsed) return;
  require(parsed->path.starts_with('/'), "a path begins with a slash");
  require(std::none_of(parsed->path.begin(), parsed->path.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }),
          "a path has no control characters");
}

HttpRouter routes() {
  HttpRouter router;
  const auto nothing = [](const HttpRequest&, const std::shared_ptr<Responder>&) {};
  router.add("POST", "/v1/completions", nothing);
  router.add("GET", "/v1/states/{id}/content", nothing);
  router.add("POST", "/v1/states/{id}", nothing, Access::everybody, 100);
  router.add("GET", "/health", nothing, Access::on_io_thread);
  return router;
}

HttpServerOptions server_options() {
  HttpServerOptions options;
  options.cors = {"https://example.org"};
  return options;
}

// The first line is the request's method, target and version; the other lines become its header.
void check_fields(std::string_view bytes) {
  const std::string_view first = bytes.substr(0, bytes.find_first_of("\r\n"));
  const size_t space = std::min(first.find(' '), first.size()), second = std::min(first.find(' ', space + 1), first.size());
  const std::string_view target = first.substr(std::min(space + 1, first.size()), second - std::min(space + 1, second));
  HttpRequest request;
  request.method = std::string(first.substr(0, space));
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    const std::string_view line = bytes.substr(at, end - at);
    if (const size_t colon = line.find(':'); colon != std::string_view::npos)
      request.headers.emplace_back(line.substr(0, colon), line.substr(colon + 1));
    at = end + 1;
  }
  static const HttpRouter router = routes();
  static const HttpServerOptions options = server_options();
  for (const std::string_view each : {target, std::string_view("/v1/states/a?b=%20")}) {
    const CheckedRequest checked = check_request(request, each, first.ends_with("HTTP/1.0"), options, router, {});
    require(checked.handler != nullptr || checked.refusal.has_value() || checked.is_preflight, "a request is handled or refused");
    require(!(checked.handler != nullptr && checked.refusal.has_value()), "a request is not both");
    require(!checked.request.id.empty() && checked.request.id.size() <= 128, "a request has an id");
    require(checked.max_body_bytes == 100 || checked.max_body_bytes == options.max_body_bytes, "the limit is that of a route");
    for (const auto& [name, value] : checked.reply_headers) {
      const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
      require(std::none_of(value.begin(), value.end(), is_control), "no header of the request splits one of the reply");
      require(name != "Access-Control-Allow-Origin" || value == "https://example.org", "only listed origins are allowed");
    }
  }
}

}  // namespace

void fuzz_one(std::span<const std::byte> input) {
  const std::string_view bytes = as_text(input);
  const HeaderScanner::Result whole = scan_in_pieces(bytes, bytes.size() + 1);
  for (const size_t piece : {1, 2, 7}) require(scan_in_pieces(bytes, piece) == whole, "the result depends on the pieces");
  check_target(bytes);
  check_target(bytes.substr(0, bytes.find(' ')));
  percent_decoded(bytes);
  accept_or_refuse([&] { check_fields(bytes); });
}

}  // namespace based
