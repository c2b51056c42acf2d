// One token a row against keys and values that lie in pages of a pool: the memory of all sequences is fixed, and each has as much of it as
// its length needs. For p = position[row], the place of the row's token in its sequence,
//   y = Σ_j softmax_j(scale·q·k_j) v_j,   0 ≤ j ≤ p,
// where key j of a slot lies in page page_table[slot][j / page_tokens] at place j mod page_tokens. The new key goes to place p first. Query
// head h reads key head h / (heads / kv_heads). A slot whose place p has no page (−1, or beyond its row of the table) is idle: nothing is
// written, y is 0.
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

struct PagedAttention {                                          // caller owns all memory
  const void* q = nullptr;                                       // [rows, heads, head_dim]
  const void* k = nullptr;                                       // [rows, kv_heads, head_dim]
  const void* v = nullptr;                                       // [rows, kv_heads, head_dim]
  void* y = nullptr;                                             // [rows, heads, head_dim], contiguous
  void* k_pages = nullptr;                                       // [pages, page_tokens, kv_heads, head_dim]
  void* v_pages = nullptr;                                       // [pages, page_tokens, kv_heads, head_dim]
  const int64_t* page_table = nullptr;                           // [slots, slot_pages], −1 or 0 .. pages − 1; no page in two places
  const int64_t* position = nullptr;                             // [rows]
  const int64_t* slot = nullptr;                                 // [rows], no slot twice
  int64_t rows = 0, pages = 0, page_tokens = 0, slot_pages = 0;  // page_tokens: a power of two
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;              // elements from one row to the next
  int32_t heads = 0, kv_heads = 0, head_dim = 64;                // head_dim 1..256
  float scale = 1;
  DType dtype = DType::f32;  // of q, k, v, y and the pages; scores and sums are fp32
};

// Bit for bit the same for a row whatever the other rows are (on a GPU: at the same number of rows).
namespace cpu {
int64_t paged_attention_scratch(const PagedAttention&);  // none
Status paged_attention_step(const PagedAttention&, void* scratch);
}  // namespace cpu

namespace cuda {
// Bytes of scratch that the call needs: sums of parts of a row's keys, where rows and heads alone do not fill the GPU.
int64_t paged_attention_scratch(const PagedAttention&);
Status paged_attention_step(const PagedAttention&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
