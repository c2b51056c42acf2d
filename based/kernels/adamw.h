// AdamW over many tensors at once: everything is read once and written once.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct AdamwTensor {
  float* master = nullptr;         // [count]
  void* rounded = nullptr;         // [count], bf16: the master's rounding; null: not wanted
  const void* gradient = nullptr;  // [count], gradient_dtype
  float* first_moment = nullptr;   // [count]
  float* second_moment = nullptr;  // [count]
  const float* step = nullptr;     // [1]: number of this step, from 1; whole, at most 2^24
  int64_t count = 0;
  DType gradient_dtype = DType::f32;
};

// With g = scale·gradient, t the tensor's step, all in fp32:
//   master −= rate·decay·master,  m = beta1·m + (1 − beta1)·g,  v = beta2·v + (1 − beta2)·g²,
//   master −= rate/(1 − beta1^t) · m / (√v/√(1 − beta2^t) + eps)
// Nothing is written where `usable` is 0.
struct Adamw {                           // caller owns all memory
  const AdamwTensor* tensors = nullptr;  // [tensor_count], in the host's memory; not read after the launcher returned
  int64_t tensor_count = 0;
  const float* rate = nullptr;    // [1], on the device like the two below
  const float* scale = nullptr;   // [1]; null: 1
  const float* usable = nullptr;  // [1]; null: 1
  float beta1 = 0, beta2 = 0, eps = 0, decay = 0;
};

namespace cuda {
Status adamw(const Adamw&, Stream);
}  // namespace cuda

}  // namespace based::kernels
