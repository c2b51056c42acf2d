#pragma once
#include "based/core/thread_flag.h"

namespace based::ops {

// While one lives on this thread, nothing that was or is queued on a GPU writes the weights of linear layers, so that a kernel may read
// them before the kernels queued ahead of it have ended. For recording a step of decoding.
struct ConstantWeights : ThreadFlag<ConstantWeights> {};

}  // namespace based::ops
