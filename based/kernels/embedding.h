// Rows of a table of embeddings, for a training step or as a step of decoding begins, and the gradient of an embedding, the same bits every
// time: each row of the table gets the sum of its tokens' gradients.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct EmbeddingStep {              // caller owns all memory
  const void* table = nullptr;      // [vocab, width]
  const int64_t* id = nullptr;      // [rows]; a negative one has row 0, one past the table NaN
  const int64_t* slot = nullptr;    // [rows], different
  int64_t* seen = nullptr;          // [slots], tokens of a slot's sequence; that of each row's slot grows by 1
  int64_t* row_position = nullptr;  // [rows], what `seen` was: the position of the row's token
  float* y = nullptr;               // [rows, width]
  int64_t rows = 0, vocab = 0, width = 0;
  DType dtype = DType::f32;  // of table
};

struct EmbeddingRows {            // caller owns all memory
  const void* table = nullptr;    // [vocab, width]
  const int64_t* id = nullptr;    // [tokens]; one outside of the table has NaN
  void* y = nullptr;              // [tokens, width]; element token·width + column is dropped as DropElements drops it
  const int64_t* step = nullptr;  // where the table is; null where nothing is dropped
  int64_t tokens = 0, vocab = 0, width = 0, seed = 0, place = 0;
  uint32_t threshold = 0;  // of dropout; 0: the rows as they are
  float scale = 1;
  DType dtype = DType::f32;  // of table and y
};

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
Status embedding_step(const EmbeddingStep&, Stream);
Status embedding_rows(const EmbeddingRows&, Stream);
}  // namespace cuda

}  // namespace based::kernels
