#pragma once
#include <cstdint>

namespace based {

// The target of positions without a prediction (torch's ignore_index). They count in neither loss nor accuracy.
inline constexpr int32_t kNoLabel = -100;

}  // namespace based
