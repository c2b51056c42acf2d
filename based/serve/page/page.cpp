#include "based/serve/page/page.h"

namespace based {

void add_page_route(HttpRouter& router) {
  // The page loads nothing from elsewhere, and no other page may frame it.
  static constexpr const char* kPolicy =
      "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'";
  router.add(
      "GET", "/",
      [](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        responder->send(200, "text/html; charset=utf-8", std::string(page_html()),
                        {{"Content-Security-Policy", kPolicy},
                         {"X-Content-Type-Options", "nosniff"},
                         {"Referrer-Policy", "no-referrer"},
                         {"Cache-Control", "no-cache"}});
      },
      Access::everybody);
}

}  // namespace based
