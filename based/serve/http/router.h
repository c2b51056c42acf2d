// Finds the handler of a request by method and path.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "based/serve/http/exchange.h"
#include "based/serve/protocol/api_error.h"

namespace based {

// Replies through the responder, at once or later from any thread. It runs on one of the server's handler threads. An exception becomes the
// reply: ApiError (protocol/api_error.h) its status, UsageError 400, others 500.
using HttpHandler = std::function<void(const HttpRequest&, const std::shared_ptr<Responder>&)>;

enum class Access {
  with_key,     // a server with API keys refuses requests without one (401)
  everybody,    // no key is needed
  on_io_thread  // no key is needed; the handler must return at once, so that it answers while all handler threads are busy
};

class HttpRouter {
 public:
  // `pattern`: a path whose parts in braces match any one part, such as /v1/states/{id}/content. They are HttpRequest::captured. A route of
  // GET answers HEAD, too.
  // `max_body_bytes`: of requests to this route; −1: HttpServerOptions::max_body_bytes.
  void add(const std::string& method, const std::string& pattern, HttpHandler handler, Access access = Access::with_key,
           int64_t max_body_bytes = -1);

  // Paths without a route get this reply instead of a 404: for a server that is not ready yet.
  void refuse_others(ApiError error) { refusal_ = std::move(error); }
  const std::optional<ApiError>& refusal() const { return refusal_; }

  struct Match {
    const HttpHandler* handler = nullptr;  // null: no route for this method
    Access access = Access::with_key;
    int64_t max_body_bytes = -1;
    HttpHeaders captured;
    std::vector<std::string> methods;  // the methods of all routes with this path; empty: no such path
  };
  Match find(std::string_view method, std::string_view path) const;
  int64_t largest_body_bytes() const;  // the largest limit of all routes; −1 if no route has its own

 private:
  struct Route {
    std::string method;
    std::vector<std::string> parts;
    HttpHandler handler;
    Access access = Access::with_key;
    int64_t max_body_bytes = -1;
  };
  std::vector<Route> routes_;
  std::optional<ApiError> refusal_;
};

}  // namespace based
