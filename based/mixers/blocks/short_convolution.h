// The short convolution before a recurrence: depthwise, causal, with SiLU.
#pragma once
#include <string>

#include "based/mixers/blocks/call.h"
#include "based/mixers/kit/parameters.h"

namespace based {

// Has the parameters of ShortFilter.
class ShortConvolution : public ShortFilter {
 public:
  using ShortFilter::ShortFilter;
  // x and the result [tokens, channels].
  Tensor forward(const Tensor& x, const Call& call, const std::string& name) const;
  // A state tensor `name` [slots, channels, taps − 1] for the latest inputs.
  StateTensor state(const std::string& name, int64_t slots) const;
};

}  // namespace based
