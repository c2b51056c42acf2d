// Based without our kernels: Taylor attention and the window's step as the paper's PyTorch listings (appendix B) compute them, in ATen
// operators and in the type of their inputs.
#pragma once
#include "based/models/config.h"
#include "based/runtime/torch.h"

namespace based::bench::listing {

using torch::Tensor;

// φ(x) = (1, x/d^¼, x⊗x/√(2d)) for x [..., d] -> [..., 1 + d + d²]. φ(q)·φ(k) is the second-order Taylor polynomial of exp(q·k/√d).
Tensor features(const Tensor& x);

// The sums over past tokens, of the type of v.
struct Sums {
  Tensor kv;  // [rows, heads, head_dim, 1 + d + d²]
  Tensor k;   // [rows, heads, 1 + d + d²]
};
Sums zero_sums(int64_t rows, int64_t heads, int64_t feature_dim, int64_t head_dim, const torch::TensorOptions& options);

// q, k [rows, heads, tokens, d], v [rows, heads, tokens, head_dim] -> [rows, heads, tokens, head_dim]: the causal sums by cumsum over
// [rows, heads, tokens, head_dim, 1 + d + d²]. `sums`, if not null, holds the sums of earlier tokens, which are replaced by those after the
// last token.
Tensor taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, Sums* sums = nullptr);
// The same without `sums` in the quadratic form: all weights 1 + s + s²/2 with s = q·k/√d, and one product with v.
Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v);
// One token for each row: q, k [rows, heads, d], v [rows, heads, head_dim]. Adds the token to `sums` in place; returns
// [rows, heads, head_dim].
Tensor taylor_step(const Tensor& q, const Tensor& k, const Tensor& v, Sums& sums);
// One token's attention over a window: q [rows, heads, head_dim], k and v [rows, heads, window, head_dim] -> [rows, heads, head_dim].
// As in the listing, the scores are not scaled.
Tensor window_step(const Tensor& q, const Tensor& k, const Tensor& v);

// The configuration with all layers of Taylor attention replaced by the mixer "listing_taylor_attention", which computes the functions
// above. The first call registers this mixer.
ModelConfig without_our_kernels(ModelConfig config);

}  // namespace based::bench::listing
