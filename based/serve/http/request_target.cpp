#include "based/serve/http/request_target.h"

#include <algorithm>

namespace based {
namespace {

int percent_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return {};
    const int high = percent_digit(text[i + 1]), low = percent_digit(text[i + 2]);
    if (high < 0 || low < 0) return {};
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

std::string_view without_authority(std::string_view target, std::string_view host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!equal_ignoring_case(target.substr(0, scheme.size()), scheme)) continue;
    const std::string_view rest = target.substr(scheme.size());
    const size_t end = std::min(rest.find_first_of("/?"), rest.size());
    if (host.empty() || !equal_ignoring_case(rest.substr(0, end), host)) break;
    return end == rest.size() ? "/" : rest.substr(end);
  }
  return target;
}

std::optional<RequestTarget> parse_target(std::string_view target) {
  if (!target.starts_with('/')) return {};
  if (std::any_of(target.begin(), target.end(), [](char c) { return c <= ' ' || c > '~' || c == '#'; })) return {};
  const size_t question = std::min(target.find('?'), target.size());
  const std::string_view path = target.substr(0, question);
  const auto decoded = percent_decoded(path);
  if (!decoded) return {};
  if (std::count(decoded->begin(), decoded->end(), '/') != std::count(path.begin(), path.end(), '/')) return {};
  if (std::any_of(decoded->begin(), decoded->end(), [](char c) { return (c >= 0 && c < ' ') || c == 127; })) return {};
  return RequestTarget{*decoded, std::string(target.substr(std::min(question + 1, target.size())))};
}

}  // namespace based
