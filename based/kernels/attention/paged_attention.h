// Decode attention, one token per row, over keys and values stored in pages of a shared pool. The pool has a fixed size, and each sequence
// uses only the pages that its length needs. With p = position[row], the position of the row's token in its sequence,
//   y = Σ_j softmax_j(scale·q·k_j) v_j,   0 ≤ j ≤ p,
// where key j of a slot is token j mod page_tokens of page page_table[slot][j / page_tokens]. The new key is first stored at position p.
// Query head h reads key head h / (heads / kv_heads). A slot without a page for position p (entry −1, or p beyond its row of the table) is
// idle: nothing is stored and y is 0.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

struct PagedAttention {                                          // caller owns all memory
  const void* q = nullptr;                                       // [rows, heads, head_dim]
  const void* k = nullptr;                                       // [rows, kv_heads, head_dim]
  const void* v = nullptr;                                       // [rows, kv_heads, head_dim]
  void* y = nullptr;                                             // [rows, heads, head_dim], contiguous
  void* k_pages = nullptr;                                       // [pages, page_tokens, kv_heads, head_dim]
  void* v_pages = nullptr;                                       // [pages, page_tokens, kv_heads, head_dim]
  const int64_t* page_table = nullptr;                           // [slots, slot_pages], −1 or 0 .. pages − 1; each page at most once
  const int64_t* position = nullptr;                             // [rows]
  const int64_t* slot = nullptr;                                 // [rows], distinct
  int64_t rows = 0, pages = 0, page_tokens = 0, slot_pages = 0;  // page_tokens: a power of two
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;              // elements from one row to the next
  int32_t heads = 0, kv_heads = 0, head_dim = 64;                // head_dim 1..256
  float scale = 1;
  DType dtype = DType::f32;  // type of q, k, v, y and the pages; scores and sums are fp32
};

// A row's output bits do not depend on the other rows (on a GPU: for a fixed number of rows).
namespace cpu {
int64_t paged_attention_scratch(const PagedAttention&);  // always 0
Status paged_attention_step(const PagedAttention&, void* scratch);
}  // namespace cpu

namespace cuda {
// Bytes of scratch that the call needs. It holds partial sums if a row's keys are split, which happens if rows and heads alone do not fill
// the GPU.
int64_t paged_attention_scratch(const PagedAttention&);
Status paged_attention_step(const PagedAttention&, void* scratch, Queue);
}  // namespace cuda

struct PagedAttentionLaunchers {
  int64_t (*scratch)(const PagedAttention&);  // bytes
  Status (*step)(const PagedAttention&, void* scratch, Queue);
};

}  // namespace based::kernels
