#include "based/serve/http/exchange.h"

#include <algorithm>

#include "based/serve/http/request_target.h"

namespace based {
namespace {

char lower_ascii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower_ascii(x) == lower_ascii(y); });
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (equal_ignoring_case(key, name)) return value;
  return {};
}

std::string_view HttpRequest::capture(std::string_view name) const {
  for (const auto& [key, value] : captured)
    if (key == name) return value;
  return {};
}

std::string HttpRequest::query_value(std::string_view name) const {
  std::string_view rest = query;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('&'), rest.size()), equals = std::min(rest.find('='), end);
    if (rest.substr(0, equals) == name)
      return percent_decoded(rest.substr(std::min(equals + 1, end), end - std::min(equals + 1, end))).value_or("");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

}  // namespace based
