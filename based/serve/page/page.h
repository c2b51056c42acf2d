// The web page at / of a server: based/serve/page/index.html, which the build compiles into the program.
#pragma once
#include <string_view>

#include "based/serve/http/router.h"

namespace based {

std::string_view page_html();

// GET /, without an API key: the page asks for the key and sends it with its own requests.
void add_page_route(HttpRouter& router);

}  // namespace based
