// A kernel of one token a row. `state_is_private` of its arguments allows early reads of its state.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "based/decode/effects.h"
#include "based/decode/step_kernel.h"

namespace based::decode {

// The operands that the kernel reads early: nothing in the step may write the constants, and only this call may use the states.
struct EarlyReads {
  std::vector<Span> constants, states;
};

// A kernel that its arguments describe completely.
template <class Arguments>
class ArgumentsKernel : public StepKernel {
 public:
  ArgumentsKernel(const Arguments& arguments, int64_t rows) : arguments_(arguments), rows_(rows) {}
  Status launch(Queue queue) const override { return decode::launch(arguments_, queue); }
  int64_t rows() const override { return rows_; }

 protected:
  Arguments arguments_;

 private:
  int64_t rows_;
};

template <class Arguments>
class StateKernel : public ArgumentsKernel<Arguments> {
 public:
  StateKernel(const Arguments& arguments, EarlyReads early)
      : ArgumentsKernel<Arguments>(arguments, arguments.rows), early_(std::move(early)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    const auto constant = [&](const Span& span) { return effects.is_constant(span); };
    const auto private_here = [&](const Span& span) { return effects.is_private(span, unit); };
    bool& may = this->arguments_.state_is_private;
    may = std::all_of(early_.constants.begin(), early_.constants.end(), constant) &&
          std::all_of(early_.states.begin(), early_.states.end(), private_here);
    return may;
  }

 private:
  EarlyReads early_;
};

}  // namespace based::decode
