// AdamW over many tensors in a few launches; everything is read once and written once.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct AdamwTensor {
  float* master = nullptr;         // [count]
  void* rounded = nullptr;         // [count], bf16: the rounded master; null: not written
  const void* gradient = nullptr;  // [count], gradient_dtype
  float* first_moment = nullptr;   // [count]
  float* second_moment = nullptr;  // [count]
  const float* step = nullptr;     // [1]: number of this step, counted from 1; an integer up to 2^24
  int64_t count = 0;
  DType gradient_dtype = DType::f32;
};

// With g = scale·gradient, t the tensor's step, all in fp32:
//   master −= rate·decay·master,  m = beta1·m + (1 − beta1)·g,  v = beta2·v + (1 − beta2)·g²,
//   master −= rate/(1 − beta1^t) · m / (√v/√(1 − beta2^t) + eps)
// Nothing is written where update_enabled is 0.
struct Adamw {                           // caller owns all memory
  const AdamwTensor* tensors = nullptr;  // [tensor_count], in host memory; not read after the launcher returns
  int64_t tensor_count = 0;
  const float* rate = nullptr;            // [1]; rate, scale and update_enabled are in device memory
  const float* scale = nullptr;           // [1]; null: 1
  const float* update_enabled = nullptr;  // [1], 0 or 1; null: 1
  float beta1 = 0, beta2 = 0, eps = 0, decay = 0;
};

namespace cuda {
Status adamw(const Adamw&, Queue);
}  // namespace cuda

// A GPU's launcher, as above.
struct AdamwLaunchers {
  Status (*update)(const Adamw&, Queue);
};

}  // namespace based::kernels
