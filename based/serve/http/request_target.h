// The parts of a request's target, such as /v1/states/st_1?limit=2.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace based {

struct RequestTarget {
  std::string path, query;  // the path is percent-decoded
};

// The path and query of a target in absolute form, such as http://host/health, whose authority is `host`; any other target unchanged.
std::string_view without_authority(std::string_view target, std::string_view host);

// Nothing for a target that does not begin with '/', that has bytes other than visible ASCII or a fragment, and for a path with malformed
// percent signs, an encoded slash or an encoded control character: two servers could read such a path differently.
std::optional<RequestTarget> parse_target(std::string_view target);

// Nothing for a malformed percent sign. '+' stays as it is.
std::optional<std::string> percent_decoded(std::string_view text);

bool equal_ignoring_case(std::string_view a, std::string_view b);  // ignores the case of ASCII letters only

}  // namespace based
