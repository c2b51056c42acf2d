// The small operators around the mixers. All differentiable; each has an ATen reference with the suffix _reference.
#pragma once
#include <optional>
#include <tuple>

#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// x · rsqrt(mean(x²) + eps) · weight over the last dimension, sums in fp32; the result has weight's type (x may be the fp32 residual).
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
Tensor rms_norm_reference(const Tensor& x, const Tensor& weight, double eps);
// residual + x, and the rms_norm of it: one pass there and one back. Types as above; x has weight's. Without a residual the sum is x, in
// fp32 where x is bf16. Gradients have weight's type, that of an fp32 sum too: it is the gradient of x, which is rounded in any case, so
// that the backward reads and writes it once.
std::tuple<Tensor, Tensor> rms_norm_add(const std::optional<Tensor>& residual, const Tensor& x, const Tensor& weight, double eps);
std::tuple<Tensor, Tensor> rms_norm_add_reference(const std::optional<Tensor>& residual, const Tensor& x, const Tensor& weight, double eps);
// residual += deferred (where given), += x in place, then its rms_norm: one pass where there is a kernel. x and deferred have weight's
// type; residual is contiguous. No gradient.
Tensor rms_norm_add_(Tensor residual, const Tensor& x, const Tensor& weight, double eps, const std::optional<Tensor>& deferred = {});
// rms_norm of residual + x, which is not kept: x is the `deferred` of the next rms_norm_add_. An fp32 stream is then written every other
// time, and bf16 read instead. No gradient.
Tensor rms_norm_of_sum(const Tensor& residual, const Tensor& x, const Tensor& weight, double eps);

// h = [y, gate] (y first), [tokens, 2·width] -> y ⊙ SiLU(gate), [tokens, width].
Tensor swiglu(const Tensor& h);
Tensor swiglu_reference(const Tensor& h);

// Rotary positions in place, on the first `dim` dimensions (even, at most 256) of each of the first `heads` heads of x [tokens, columns];
// positions int64 [tokens]. Halves (a, b) -> (a cos − b sin, a sin + b cos), angle = position · base^(−2i/dim); interleaved: pairs
// (2i, 2i + 1) instead; inverse: turned back. Returns x; the reference returns a copy.
struct Rotation {
  int64_t heads = 1, head_dim = 64, dim = 64;
  double base = 10000;
  bool interleaved = false, inverse = false;
};
Tensor rotary_(Tensor x, const Tensor& positions, const Rotation& rotation);
Tensor rotary_reference(const Tensor& x, const Tensor& positions, const Rotation& rotation);

// x [rows, in] · weight[out, in]ᵀ + bias. With gradients off on the CPU, up to kBatchInvariantRows rows go through a kernel whose result
// for a row does not depend on the other rows, bit for bit; this is what makes `step` independent of the batch.
constexpr int64_t kBatchInvariantRows = 64;
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {});
Tensor linear_reference(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {});
// swiglu(linear(…)), at once where a kernel does that: on a GPU one row, and in bf16 on Hopper few rows (kernels/linear.h), more
// of them without a bias.
Tensor linear_swiglu(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {});
Tensor linear_swiglu_reference(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias = {});

// Mean over labels ≠ −100 of the cross entropy of hidden·weightᵀ: hidden [tokens, d], weight [vocab, d], labels int64 [tokens]; 0 where
// there is no label. The result is fp32 (fp64 for double inputs). Logits are made only where a label is, in chunks; the logits of a
// whole batch never exist. Where gradients are on, they are computed with the value; the backward only scales them.
// `labelled` is how many labels there are; −1: they are counted, which waits for a device.
Tensor cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t labelled = -1);
Tensor cross_entropy_reference(const Tensor& hidden, const Tensor& weight, const Tensor& labels);

// The log-probability of each row's target under softmax(hidden·weightᵀ), fp32 [tokens] (fp64 for double inputs): targets int64 [tokens],
// 0 .. vocab − 1. The logits of all rows never exist. No gradient.
Tensor token_log_probabilities(const Tensor& hidden, const Tensor& weight, const Tensor& targets);

}  // namespace based::ops
