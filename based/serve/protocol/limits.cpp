#include "based/serve/protocol/limits.h"

#include <string>

namespace based {

void check_request_limits(const RequestLimits& limits) {
  RequestLimits copy = limits;
  copy.visit([](const char* name, int64_t& value, const char*) {
    if (value < 1) throw UsageError("the request limit " + std::string(name) + " must be at least 1, got " + std::to_string(value));
  });
}

}  // namespace based
