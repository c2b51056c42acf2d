// A kernel of one token a row, or of several tokens of one sequence. A flag of its arguments allows early reads of its state.
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
  bool are_allowed(const Effects& effects, size_t unit) const {
    const auto constant = [&](const Span& span) { return effects.is_constant(span); };
    const auto private_here = [&](const Span& span) { return effects.is_private(span, unit); };
    return std::all_of(constants.begin(), constants.end(), constant) && std::all_of(states.begin(), states.end(), private_here);
  }
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
    return this->arguments_.state_is_private = early_.are_allowed(effects, unit);
  }

 private:
  EarlyReads early_;
};

// A kernel of several tokens of one sequence (ops/framework/tokens_step.h). `is_private`: the flag of `step`, its arguments for one token.
template <class Arguments, auto is_private>
class TokensKernel : public ArgumentsKernel<Arguments> {
 public:
  // `rows`: of the step, padding included.
  TokensKernel(const Arguments& arguments, int64_t rows, EarlyReads early)
      : ArgumentsKernel<Arguments>(arguments, rows), early_(std::move(early)) {}

  bool read_early(const Effects& effects, size_t unit) override {
    return this->arguments_.step.*is_private = early_.are_allowed(effects, unit);
  }

 private:
  EarlyReads early_;
};

}  // namespace based::decode
