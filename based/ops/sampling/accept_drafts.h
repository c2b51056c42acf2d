// The end of a step of several tokens of one sequence: see kernels/sampling/accept_drafts.h. The host need not know how many drafts are
// right, so that a GPU does this while the host reads the drawn tokens.
#pragma once
#include <vector>

#include "based/ops/framework/arguments.h"

namespace based::ops {

// A value after all tokens of a step, and `rows` [n, …]: row i is the value after the input token and i drafts. Both are contiguous, with
// the same number of elements in `to` as in a row.
struct AcceptedValue {
  Tensor to, rows;
};

// tokens int64 [drafts or more], drawn after the input token and after each draft; drafts int64 [drafts]. Sets `to` of each value to its
// row number a, the number of leading drafts that equal the token drawn before each; a value without this row stays. Asynchronous on a GPU.
// Throws Error.
void accept_drafts_(const Tensor& tokens, const Tensor& drafts, const std::vector<AcceptedValue>& values);

}  // namespace based::ops
