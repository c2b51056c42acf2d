// Dropout whose draws depend on (seed of the run, step, place, element) alone.
#pragma once
#include "based/kernels/training/dropout.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// The source of a training step's draws. `step` is int64 [], on the model's device, so that a recorded step reads a new one at each replay.
struct Draws {
  int64_t seed = 0;
  Tensor step;              // undefined: the caller draws nothing
  int64_t first_token = 0;  // number of tokens before these: token t draws the numbers of token first_token + t
};

// x·keep/(1 − p), x [tokens, …], p in [0, 1). Elements are numbered in their order, from 0 or the first element of draws.first_token.
// `place` distinguishes the uses within one step. Differentiable: the gradient drops the same elements. p = 0 gives x itself. Error where p
// > 0 and draws.step is undefined.
Tensor dropout(const Tensor& x, double p, const Draws& draws, int64_t place);
// By the formulas of kernels/training/dropout.h in ATen, for any type on any device.
Tensor dropout_reference(const Tensor& x, double p, const Draws& draws, int64_t place);

// The operator.
struct Dropout {
  const Tensor& x;
  double p;
  int64_t seed;
  const Tensor& step;
  int64_t place;
  int64_t first_token = 0;
  BASED_OPERATOR("dropout -> y", x, p, seed, step, place, or_else(first_token, 0))
};

}  // namespace based::ops
