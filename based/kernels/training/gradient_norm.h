// The norm over many tensors, and the decisions of a training step that depend on it: the clip factor, and whether the step updates the
// parameters. The gradients are read once.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct GradientNormTensor {
  const void* gradient = nullptr;  // [count], dtype
  int64_t count = 0;
  DType dtype = DType::f32;
};

// With n = √Σ gradient², summed in fp32 over chunks of a few thousand elements and in double over the chunks, in a fixed order:
//   loss_and_norm = (loss, n),  update_enabled = enabled where both are finite, else 0,  scale = 1 where n ≤ clip, else clip/(n + 1e-6)
struct GradientNorm {                           // caller owns all memory
  const GradientNormTensor* tensors = nullptr;  // [tensor_count], in host memory; not read after the launcher returns
  int64_t tensor_count = 0;
  const float* loss = nullptr;       // [1]; this and all tensors below are in device memory; null: loss_f64 is read instead
  const double* loss_f64 = nullptr;  // [1]
  const float* enabled = nullptr;    // [1]; null: 1
  double clip = 0;                   // 0: scale is 1
  double* loss_and_norm = nullptr;   // [2]
  float* update_enabled = nullptr;   // [1]
  float* scale = nullptr;            // [1]
};

namespace cuda {
int64_t gradient_norm_scratch(const GradientNorm&);  // bytes
Status gradient_norm(const GradientNorm&, void* scratch, Queue);
}  // namespace cuda

// A GPU's launchers, as above.
struct GradientNormLaunchers {
  int64_t (*scratch)(const GradientNorm&);
  Status (*norm)(const GradientNorm&, void* scratch, Queue);
};

}  // namespace based::kernels
