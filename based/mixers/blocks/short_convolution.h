// The short convolution in front of a recurrence: depthwise, causal, with SiLU.
#pragma once
#include <string>

#include "based/mixers/blocks/call.h"
#include "based/mixers/parameters.h"

namespace based {

// Parameters as ShortFilter's.
class ShortConvolution : public ShortFilter {
 public:
  using ShortFilter::ShortFilter;
  // x and the result [tokens, channels].
  Tensor forward(const Tensor& x, const Call& call, const std::string& name) const;
  // Its state of this name, [slots, channels, taps − 1]: the latest inputs.
  StateTensor state(const std::string& name, int64_t slots) const;
};

}  // namespace based
