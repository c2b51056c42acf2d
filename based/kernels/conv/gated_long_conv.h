// Long convolution of products of keys and values, multiplied by queries, as in H3 and Hyena. For each head of `head_dim` channels, over
// the tokens s ≤ t of a row:
//   y_t[j] = Σ_i q_t[i] z_t[i, j],   z_t[i, j] = Σ_s filter[t − s] k_s[i] v_s[j]
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

constexpr int64_t kGatedLongConvLength = 2048;  // maximum number of tokens per row

// Whether pairs of tokens, y_t = Σ_s filter[t − s] (q_t·k_s) v_s, are less work than convolutions of the products k_i v_j. For each token
// and head, pairs take about length · head_dim multiplications (half of the keys, twice), and convolutions head_dim² FFTs of about 64
// operations a token. Products of matrices run at least twice as fast as FFTs.
constexpr bool pairs_are_less_work(int64_t length, int64_t head_dim) { return head_dim >= 8 && length <= 128 * head_dim; }

struct GatedLongConv {            // caller owns all memory; strides count elements from one token to the next
  const float* q = nullptr;       // [rows · length, channels], or null: 1; null requires head_dim = 1
  const float* k = nullptr;       // [rows · length, channels]
  const float* v = nullptr;       // [rows · length, channels], or null: 1; null requires head_dim = 1
  const float* filter = nullptr;  // [channels / head_dim, taps], contiguous; taps beyond `length` are ignored, missing ones are 0
  float* y = nullptr;             // [rows · length, channels]
  int64_t rows = 0, length = 0, channels = 0, taps = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, y_stride = 0;
  int32_t head_dim = 1;
  bool single_tf32 = false;  // see CausalAttention
};

// Gradients have the same bits on every run.
struct GatedLongConvBackward {
  GatedLongConv forward;          // y is ignored
  const float* grad_y = nullptr;  // [rows · length, channels]
  float* grad_q = nullptr;        // [rows · length, channels]; null if q is null; grad_v: null if v is null
  float* grad_k = nullptr;        // [rows · length, channels]
  float* grad_v = nullptr;        // [rows · length, channels]
  float* grad_filter = nullptr;   // [channels / head_dim, taps], contiguous
  int64_t grad_y_stride = 0, grad_q_stride = 0, grad_k_stride = 0, grad_v_stride = 0;
};

namespace cuda {
// Whether the kernels support a problem. With head_dim 1 or 2: channels a multiple of 8, length up to kGatedLongConvLength, tokens of all
// tensors aligned to 16 bytes. With head_dim 8 to 128: q, v, length up to 128 head_dim, y and grad_y contiguous. And a device with enough
// shared memory per block.
bool gated_long_conv_takes(const GatedLongConv&);
bool gated_long_conv_backward_takes(const GatedLongConv&);
// The bits of a row's y do not depend on the other rows.
Status gated_long_conv_forward(const GatedLongConv&, Queue);
int64_t gated_long_conv_backward_scratch(const GatedLongConvBackward&);  // bytes
Status gated_long_conv_backward(const GatedLongConvBackward&, void* scratch, Queue);
}  // namespace cuda

struct GatedLongConvLaunchers {
  bool (*supports)(const GatedLongConv&);           // gated_long_conv_takes()
  bool (*backward_supports)(const GatedLongConv&);  // gated_long_conv_backward_takes()
  Status (*forward)(const GatedLongConv&, Queue);
  int64_t (*backward_scratch)(const GatedLongConvBackward&);  // bytes
  Status (*backward)(const GatedLongConvBackward&, void* scratch, Queue);
};

}  // namespace based::kernels
