// The request of POST /v1/states.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "based/serve/protocol/completion_request.h"

namespace based {

inline constexpr int64_t kMostStateTtl = INT32_MAX;

struct StateRequest {
  Prompt prompt;
  std::string state;  // the id of the state that the prompt continues, "" if there is none
  std::string label;
  std::optional<int64_t> ttl_seconds;
};

// Throws ApiError.
StateRequest parse_state_request(const Json& request, const RequestLimits& limits, const ModelFacts& model);

}  // namespace based
