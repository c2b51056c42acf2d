// The norm over many tensors, and what a step of training decides by it: one read of the gradients, a number each that is written.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct GradientNormTensor {
  const void* gradient = nullptr;  // [count], dtype
  int64_t count = 0;
  DType dtype = DType::f32;
};

// With n = √Σ gradient², summed in fp32 over a few thousand elements and in double over all, in a fixed order:
//   figures = (loss, n),  usable = enabled where both are finite and 0 elsewhere,  scale = 1 where n ≤ clip, or clip/(n + 1e-6)
struct GradientNorm {                           // caller owns all memory
  const GradientNormTensor* tensors = nullptr;  // [tensor_count], in the host's memory; not read after the launcher returned
  int64_t tensor_count = 0;
  const float* loss = nullptr;        // [1], on the device like all below; or null:
  const double* wide_loss = nullptr;  // [1]
  const float* enabled = nullptr;     // [1]; null: 1
  double clip = 0;                    // 0: scale is 1
  double* figures = nullptr;          // [2]
  float* usable = nullptr;            // [1]
  float* scale = nullptr;             // [1]
};

namespace cuda {
int64_t gradient_norm_scratch(const GradientNorm&);  // bytes
Status gradient_norm(const GradientNorm&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
