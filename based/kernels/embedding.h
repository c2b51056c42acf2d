// The gradient of an embedding, the same bits every time: each row of the table gets the sum of its tokens' gradients.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct EmbeddingBackward {      // caller owns all memory
  const void* grad = nullptr;   // [tokens, width]
  const int64_t* id = nullptr;  // [tokens], 0 … rows − 1
  void* to = nullptr;           // [rows, width]; a row's sum, in fp32, is added to what is there, and rounded once
  int64_t tokens = 0, rows = 0, width = 0;
  DType dtype = DType::f32;  // of grad and to
};

namespace cuda {
// Rows of whole 16 bytes, aligned to them; fewer than 2³¹ of either.
bool embedding_backward_supports(const EmbeddingBackward&);
int64_t embedding_backward_scratch(const EmbeddingBackward&);
Status embedding_backward(const EmbeddingBackward&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
