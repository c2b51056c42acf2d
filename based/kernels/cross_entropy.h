// Cross entropy of rows of logits, and its gradient in their place: what lies between the matrix products of a language model's loss.
//   loss_r = ln Σ_w exp(logits_rw) − logits_r,label;   gradient_rw = (exp(logits_rw) / Σ exp − [w = label_r])·scale
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct CrossEntropy {              // caller owns all memory
  void* logits = nullptr;          // [rows, vocab], contiguous; the gradient takes their place where `gradient` is set
  void* half_gradient = nullptr;   // [rows, vocab], contiguous, fp16: where the gradient of fp32 logits goes instead; CUDA alone
  const int64_t* label = nullptr;  // [rows], 0..vocab − 1
  float* loss = nullptr;           // [rows]
  int64_t rows = 0, vocab = 0;
  float scale = 1;  // of the gradient: 1 / the number of labels for a mean
  bool gradient = false;
  DType dtype = DType::f32;  // of logits; sums are fp32
};

namespace cpu {
// Bit for bit the same for a row whatever the other rows and the number of threads are.
Status cross_entropy(const CrossEntropy&);
}  // namespace cpu

namespace cuda {
Status cross_entropy(const CrossEntropy&, Stream);
}  // namespace cuda

}  // namespace based::kernels
