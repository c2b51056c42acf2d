#include "based/serve/http/router.h"

#include <algorithm>
#include <utility>

namespace based {
namespace {

std::vector<std::string> path_parts(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const size_t end = std::min(path.find('/'), path.size());
    parts.emplace_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return parts;
}

bool is_capture(std::string_view part) { return part.size() > 2 && part.front() == '{' && part.back() == '}'; }

bool matches_route(const std::vector<std::string>& pattern, const std::vector<std::string>& parts) {
  return std::equal(pattern.begin(), pattern.end(), parts.begin(), parts.end(),
                    [](const std::string& a, const std::string& b) { return is_capture(a) ? !b.empty() : a == b; });
}

}  // namespace

void HttpRouter::add(const std::string& method, const std::string& pattern, HttpHandler handler, Access access, int64_t max_body_bytes) {
  routes_.push_back({method, path_parts(pattern), std::move(handler), access, max_body_bytes});
}

HttpRouter::Match HttpRouter::find(std::string_view method, std::string_view path) const {
  const std::vector<std::string> parts = path_parts(path);
  Match match;
  for (const Route& route : routes_) {
    if (!matches_route(route.parts, parts)) continue;
    match.methods.push_back(route.method);
    if (route.method == "GET") match.methods.emplace_back("HEAD");
    const bool answers = route.method == method || (method == "HEAD" && route.method == "GET");
    if (!answers || match.handler != nullptr) continue;
    match.handler = &route.handler;
    match.access = route.access;
    match.max_body_bytes = route.max_body_bytes;
    for (size_t i = 0; i < parts.size(); ++i)
      if (is_capture(route.parts[i])) match.captured.emplace_back(route.parts[i].substr(1, route.parts[i].size() - 2), parts[i]);
  }
  return match;
}

int64_t HttpRouter::largest_body_bytes() const {
  int64_t largest = -1;
  for (const Route& route : routes_) largest = std::max(largest, route.max_body_bytes);
  return largest;
}

}  // namespace based
