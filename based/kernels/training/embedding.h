// Embedding lookups, for training and for the start of a decode step, and the gradient of an embedding: each row of the table receives the
// sum of its tokens' gradients. The gradient is deterministic.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct EmbeddingStep {              // caller owns all memory
  const void* table = nullptr;      // [vocab, width]
  const int64_t* id = nullptr;      // [rows]; a negative id reads row 0, an id past the table gives NaN
  const int64_t* slot = nullptr;    // [rows], no slot twice
  int64_t* seen = nullptr;          // [slots], number of tokens of each slot's sequence; incremented for the slots of the rows
  int64_t* row_position = nullptr;  // [rows], the old value of `seen`: the position of the row's token
  float* y = nullptr;               // [rows, width]
  int64_t rows = 0, vocab = 0, width = 0;
  DType dtype = DType::f32;  // type of the table
};

struct EmbeddingRows {            // caller owns all memory
  const void* table = nullptr;    // [vocab, width]
  const int64_t* id = nullptr;    // [tokens]; an id outside of the table gives NaN
  void* y = nullptr;              // [tokens, width]; dropout: element (first_token + token)·width + column
  const int64_t* step = nullptr;  // [1], on the device of the table; null where nothing is dropped
  int64_t tokens = 0, vocab = 0, width = 0, seed = 0, place = 0;
  uint32_t threshold = 0;  // as in Dropout; 0: nothing is dropped
  float scale = 1;
  DType dtype = DType::f32;  // type of table and y
  int64_t first_token = 0;   // see dropout
};

struct EmbeddingBackward {      // caller owns all memory
  const void* grad = nullptr;   // [tokens, width]
  const int64_t* id = nullptr;  // [tokens], 0 … rows − 1
  void* to = nullptr;           // [rows, width]; a row's fp32 sum is added to its old value, then rounded once
  int64_t tokens = 0, rows = 0, width = 0;
  DType dtype = DType::f32;  // type of grad and to
};

// A step of up to kMostEmbeddingTokens consecutive tokens of one sequence: rows = 1.
constexpr int64_t kMostEmbeddingTokens = 8;
struct EmbeddingTokens {
  EmbeddingStep step;               // slot [1]; id [tokens], row_position [tokens + padding], y [tokens + padding, width]
  int64_t tokens = 1, padding = 0;  // rows of the results that repeat the last token's
  int64_t* kept_seen = nullptr;     // [tokens − 1], the count of tokens after each token but the last; may be null
};

namespace cuda {
// Whether the rows are multiples of 16 bytes and aligned to 16 bytes, and there are fewer than 2³¹ tokens and rows.
bool embedding_backward_supports(const EmbeddingBackward&);
int64_t embedding_backward_scratch(const EmbeddingBackward&);
Status embedding_backward(const EmbeddingBackward&, void* scratch, Queue);
Status embedding_step(const EmbeddingStep&, Queue);
Status embedding_tokens(const EmbeddingTokens&, Queue);
Status embedding_rows(const EmbeddingRows&, Queue);
}  // namespace cuda

// A GPU's launchers, as above.
struct EmbeddingLaunchers {
  bool (*backward_supports)(const EmbeddingBackward&);
  int64_t (*backward_scratch)(const EmbeddingBackward&);
  Status (*backward)(const EmbeddingBackward&, void* scratch, Queue);
  Status (*step)(const EmbeddingStep&, Queue);
  Status (*step_tokens)(const EmbeddingTokens&, Queue);
  Status (*rows)(const EmbeddingRows&, Queue);
};

}  // namespace based::kernels
