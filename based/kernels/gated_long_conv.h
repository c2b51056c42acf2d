// Long convolution of products of keys and values, read out by queries: H3's and Hyena's. For each head of `head_dim` channels, over the
// tokens s ≤ t of a row:
//   y_t[j] = Σ_i q_t[i] z_t[i, j],   z_t[i, j] = Σ_s filter[t − s] k_s[i] v_s[j]
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

constexpr int64_t kGatedLongConvLength = 2048;  // tokens of a row, at most

struct GatedLongConv {            // caller owns all memory; strides count elements from one token to the next
  const float* q = nullptr;       // [rows · length, channels], or null: 1, in heads of one channel
  const float* k = nullptr;       // [rows · length, channels]
  const float* v = nullptr;       // [rows · length, channels], or null: 1, likewise
  const float* filter = nullptr;  // [channels / head_dim, taps], contiguous; taps beyond `length` are not read, missing ones are 0
  float* y = nullptr;             // [rows · length, channels]
  int64_t rows = 0, length = 0, channels = 0, taps = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, y_stride = 0;
  int32_t head_dim = 1;
  bool single_tf32 = false;  // as that of CausalAttention
};

// Gradients, the same bits every time.
struct GatedLongConvBackward {
  GatedLongConv forward;          // y ignored
  const float* grad_y = nullptr;  // [rows · length, channels]
  float* grad_q = nullptr;        // [rows · length, channels]; null where q is, as grad_v where v is
  float* grad_k = nullptr;        // [rows · length, channels]
  float* grad_v = nullptr;        // [rows · length, channels]
  float* grad_filter = nullptr;   // [channels / head_dim, taps], contiguous
  int64_t grad_y_stride = 0, grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
};

namespace cuda {
// Whether head_dim is 1 or 2, channels a multiple of 8, length up to kGatedLongConvLength, all memory of tokens aligned to 16 bytes, and
// the device's blocks have the shared memory.
bool gated_long_conv_takes(const GatedLongConv&);
bool gated_long_conv_backward_takes(const GatedLongConv&);
// A row's y has the same bits whatever the other rows are.
Status gated_long_conv_forward(const GatedLongConv&, Stream);
int64_t gated_long_conv_backward_scratch(const GatedLongConvBackward&);  // bytes
Status gated_long_conv_backward(const GatedLongConvBackward&, void* scratch, Stream);
}  // namespace cuda

}  // namespace based::kernels
