#pragma once
#include <cstdint>

namespace based {

// The target of a position where nothing is to be predicted: it counts in neither loss nor accuracy.
inline constexpr int32_t kNoLabel = -100;

}  // namespace based
