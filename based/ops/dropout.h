// Dropout whose draws depend on (seed of the run, step, place, element) alone.
#pragma once
#include "based/kernels/dropout.h"
#include "based/ops/operator.h"

namespace based::ops {

// What a training step draws from: `step` int64 [], where the model is, so that a recorded step reads a new one at each replay.
struct Draws {
  int64_t seed = 0;
  Tensor step;  // undefined: nothing may be drawn
};

// x·keep/(1 − p), x of any shape, contiguous elements numbered from 0; p in [0, 1). `place` tells the uses of one step apart.
// Differentiable: the gradient drops the same elements.
Tensor dropout(const Tensor& x, double p, const Draws& draws, int64_t place);

}  // namespace based::ops
