#pragma once
#include "based/core/thread_flag.h"

namespace based::ops {

// While one lives on this thread, a step of decoding is being recorded, in which nothing that was or is queued on a GPU writes weights,
// biases or the numbers of slots, and a layer's state is written by that layer's kernel alone. Kernels may then read these before the
// kernels queued ahead of them have ended. What a norm reads besides the residual stream, and what it gives, is read by nobody behind
// the next norm, so that norms may become parts of the layers around them (kernels/step_program.h).
struct RecordedStep : ThreadFlag<RecordedStep> {};

}  // namespace based::ops
