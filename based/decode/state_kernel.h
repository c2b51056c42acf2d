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

// A kernel that its arguments alone tell.
template <class Arguments>
class ArgumentsKernel : public StepKernel {
 public:
  ArgumentsKernel(const Arguments& arguments, int64_t rows) : arguments_(arguments), rows_(rows) {}
  Status launch(Stream stream) const override { return launcher<Arguments>(arguments_, stream); }
  int64_t rows() const override { return rows_; }

 protected:
  Arguments arguments_;

 private:
  int64_t rows_;
};

template <class Arguments>
class StateKernel : public ArgumentsKernel<Arguments> {
 public:
  StateKernel(const Arguments& arguments, ReadAhead ahead)
      : ArgumentsKernel<Arguments>(arguments, arguments.rows), ahead_(std::move(ahead)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    const auto constant = [&](const Span& span) { return effects.is_constant(span); };
    const auto private_here = [&](const Span& span) { return effects.is_private(span, unit); };
    bool& may = this->arguments_.state_is_private;
    may = std::all_of(ahead_.constants.begin(), ahead_.constants.end(), constant) &&
          std::all_of(ahead_.states.begin(), ahead_.states.end(), private_here);
    return may;
  }

 private:
  ReadAhead ahead_;
};

}  // namespace based::decode
