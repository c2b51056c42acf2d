// Cross entropy of rows of logits and its gradient, which overwrites the logits: the part of a language model's loss between the matrix
// products.
//   loss_r = ln Σ_w exp(logits_rw) − logits_r,label;   gradient_rw = (exp(logits_rw) / Σ exp − [w = label_r])·scale
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct CrossEntropy {              // caller owns all memory
  void* logits = nullptr;          // [rows, vocab], contiguous; overwritten by the gradient where `gradient` is set
  void* half_gradient = nullptr;   // [rows, vocab], contiguous, fp16: receives the gradient of fp32 logits instead; CUDA only
  const int64_t* label = nullptr;  // [rows], 0..vocab − 1
  float* loss = nullptr;           // [rows]
  int64_t rows = 0, vocab = 0;
  float scale = 1;  // factor of the gradient: 1 / the number of labels for a mean
  bool gradient = false;
  DType dtype = DType::f32;  // type of the logits; sums are fp32
};

namespace cpu {
// A row's result does not depend on the other rows or on the number of threads, bit for bit.
Status cross_entropy(const CrossEntropy&);
}  // namespace cpu

namespace cuda {
Status cross_entropy(const CrossEntropy&, Queue);
}  // namespace cuda

// A device's launcher, as above.
struct CrossEntropyLaunchers {
  Status (*softmax)(const CrossEntropy&, Queue);
};

}  // namespace based::kernels
