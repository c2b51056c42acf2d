// A kernel of one token a row whose arguments say by `state_is_private` whether its state may be read ahead.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "based/decode/effects.h"
#include "based/decode/step_kernel.h"

namespace based::decode {

// What the kernel reads ahead: memory that nothing in the step writes, and memory that this call alone touches.
struct ReadAhead {
  std::vector<Span> constants, states;
};

template <class Arguments>
class StateKernel : public StepKernel {
 public:
  StateKernel(const Arguments& arguments, ReadAhead ahead) : arguments_(arguments), ahead_(std::move(ahead)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    const auto constant = [&](const Span& span) { return effects.is_constant(span); };
    const auto private_here = [&](const Span& span) { return effects.is_private(span, unit); };
    arguments_.state_is_private = std::all_of(ahead_.constants.begin(), ahead_.constants.end(), constant) &&
                                  std::all_of(ahead_.states.begin(), ahead_.states.end(), private_here);
    return arguments_.state_is_private;
  }
  Status launch(Stream stream) const override { return launcher<Arguments>(arguments_, stream); }
  int64_t rows() const override { return arguments_.rows; }

 protected:
  Arguments arguments_;

 private:
  ReadAhead ahead_;
};

}  // namespace based::decode
