#pragma once

namespace based::ops {

// While one lives on this thread, nothing that was or is queued on a GPU writes the weights of linear layers, so that a kernel may read
// them before the kernels queued ahead of it have ended. For recording a step of decoding.
class ConstantWeights {
 public:
  ConstantWeights();
  ~ConstantWeights();
  ConstantWeights(const ConstantWeights&) = delete;
  ConstantWeights& operator=(const ConstantWeights&) = delete;
  static bool active();
};

}  // namespace based::ops
