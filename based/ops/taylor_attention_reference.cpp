// Taylor linear attention in ATen operators, differentiable by ATen's autograd: the listing, the quadratic form, and the chunked form that
// serves double precision and devices without a kernel.
#include "based/ops/taylor_attention_reference.h"

#include <functional>

#include "based/kernels/taylor_attention.h"
#include "based/ops/arguments.h"
#include "based/ops/rows.h"

namespace based::ops {
namespace {

// One run of rows of equal length. v has a last column of ones, so that the last column of the state and of the sums is the denominator.
struct RunArguments {
  Tensor q, k;   // [rows, heads, length, feature_dim]
  Tensor v;      // [rows, heads, length, head_dim + 1]
  Tensor state;  // [rows, heads, packed_features, head_dim + 1]
  Tensor decay;  // [heads] or undefined
};

struct RunResult {
  Tensor sums;  // [rows, heads, length, head_dim + 1]
  Tensor state;
};

// decay^exponent, [heads, …], in a shape that multiplies [rows, heads, …].
Tensor decay_power(const Tensor& decay, const Tensor& exponent) {
  std::vector<int64_t> sizes(exponent.dim() + 1, 1);
  sizes[0] = decay.size(0);
  return decay.view(sizes).pow(exponent);
}

// w(q_i·k_j)·decay^(i−j) for j ≤ i, else 0.
Tensor causal_weights(const Tensor& q, const Tensor& k, const Tensor& decay) {
  const Tensor a = at::matmul(q, k.transpose(-1, -2));
  const Tensor weights = (1 + a + a * a / 2).tril();
  if (!decay.defined()) return weights;
  const Tensor position = at::arange(q.size(-2), q.options());
  return weights * decay_power(decay, (position.unsqueeze(1) - position).clamp_min(0));
}

RunResult listing(const RunArguments& in) {
  const Tensor q_features = taylor_features(in.q), k_features = taylor_features(in.k);
  Tensor state = in.state;
  std::vector<Tensor> sums;
  for (int64_t t = 0; t < in.q.size(2); ++t) {
    if (in.decay.defined()) state = state * in.decay.view({-1, 1, 1});
    state = state + k_features.select(2, t).unsqueeze(-1) * in.v.select(2, t).unsqueeze(-2);
    sums.push_back((q_features.select(2, t).unsqueeze(-1) * state).sum(-2));
  }
  return {sums.empty() ? at::zeros_like(in.v) : at::stack(sums, 2), state};
}

RunResult chunked(const RunArguments& in) {
  constexpr int64_t kChunk = 64;
  const int64_t length = in.q.size(2);
  Tensor state = in.state;
  std::vector<Tensor> sums;
  for (int64_t begin = 0; begin < length; begin += kChunk) {
    const int64_t size = std::min(kChunk, length - begin);
    const Tensor q = in.q.narrow(2, begin, size), k = in.k.narrow(2, begin, size), v = in.v.narrow(2, begin, size);
    const Tensor within = at::matmul(causal_weights(q, k, in.decay), v);
    Tensor before = at::matmul(taylor_features(q), state);
    Tensor k_features = taylor_features(k);
    if (in.decay.defined()) {
      const Tensor position = at::arange(size, q.options());
      before = before * decay_power(in.decay, position + 1).unsqueeze(-1);
      k_features = k_features * decay_power(in.decay, size - 1 - position).unsqueeze(-1);
      state = state * in.decay.pow(size).view({-1, 1, 1});
    }
    sums.push_back(within + before);
    state = state + at::matmul(k_features.transpose(-1, -2), v);
  }
  return {sums.empty() ? at::zeros_like(in.v) : at::cat(sums, 2), state};
}

RunResult quadratic(const RunArguments& in) { return {at::matmul(causal_weights(in.q, in.k, in.decay), in.v), in.state}; }

Tensor with_ones(const Tensor& v) { return at::cat({v, at::ones_like(v.narrow(-1, 0, 1))}, -1); }

}  // namespace

Tensor taylor_features(const Tensor& x) {
  const int64_t d = x.size(-1);
  std::vector<Tensor> parts{at::ones_like(x.narrow(-1, 0, 1)), x};
  for (int64_t i = 0; i < d; ++i) {
    const Tensor products = x.narrow(-1, i, 1) * x.narrow(-1, i, d - i);
    parts.push_back(products.narrow(-1, 0, 1) * M_SQRT1_2);
    parts.push_back(products.narrow(-1, 1, d - i - 1));
  }
  return at::cat(parts, -1);
}

namespace {

TaylorForward over_runs(const TaylorAttention& in, const std::function<RunResult(const RunArguments&)>& run_form) {
  check_taylor_attention("taylor_attention", in);
  const at::ScalarType type = sum_type(in.q);
  const Tensor q = in.q.to(type), k = in.k.to(type), v = with_ones(in.v.to(type));
  const Tensor decay = in.decay ? in.decay->to(type) : Tensor();
  const std::vector<int64_t> starts = row_starts("taylor_attention", "cu_seqlens", in.cu_seqlens, q.size(0));
  const int64_t rows = in.cu_seqlens.size(0) - 1, heads = q.size(1), features = kernels::packed_features(q.size(2)),
                head_dim = in.v.size(2);
  const Tensor initial = in.initial_kv_state ? at::cat({*in.initial_kv_state, in.initial_k_state->unsqueeze(-1)}, -1)
                                             : at::zeros({rows, heads, features, head_dim + 1}, v.options());
  std::vector<Tensor> sums, states;
  for (const Run& run : equal_runs(starts)) {
    const auto heads_first = [&](const Tensor& packed) { return tokens_of(packed, run).transpose(1, 2); };
    const RunResult result = run_form({heads_first(q), heads_first(k), heads_first(v), initial.narrow(0, run.first_row, run.rows), decay});
    sums.push_back(result.sums.transpose(1, 2).reshape({run.rows * run.length, heads, head_dim + 1}));
    states.push_back(result.state);
  }
  const Tensor all = join(sums, v.sizes(), v.options()), state = join(states, initial.sizes(), initial.options());
  const Tensor denominator = all.select(-1, head_dim);
  return {(all.narrow(-1, 0, head_dim) / denominator.unsqueeze(-1)).to(in.v.scalar_type()), state.narrow(-1, 0, head_dim),
          state.select(-1, head_dim), denominator};
}

}  // namespace

TaylorForward taylor_attention_chunked(const TaylorAttention& in) { return over_runs(in, chunked); }

std::tuple<Tensor, TaylorState> taylor_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                           const std::optional<TaylorState>& initial_state, const OptionalTensor& decay) {
  const OptionalTensor kv = initial_state ? OptionalTensor(initial_state->kv) : std::nullopt;
  const OptionalTensor sum_k = initial_state ? OptionalTensor(initial_state->k) : std::nullopt;
  const TaylorForward out = over_runs({q, k, v, cu_seqlens, kv, sum_k, decay}, listing);
  return {out.y, {out.kv_state, out.k_state}};
}

Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                  const OptionalTensor& decay) {
  return over_runs({q, k, v, cu_seqlens, {}, {}, decay}, quadratic).y;
}

Tensor taylor_attention_step_reference(const TaylorAttentionStep& in) {
  const auto& [q, k, v, kv_state, k_state, slots, decay, scale] = in;
  const at::ScalarType type = sum_type(q);
  const Tensor q_features = taylor_features(q.to(type)), k_features = taylor_features(k.to(type)), values = v.to(type);
  Tensor y = at::empty_like(values);
  // Row by row, and sums by elementwise operators: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>();
    Tensor kv = kv_state.select(0, slot), sum_k = k_state.select(0, slot);
    if (decay) {
      kv.mul_(decay->to(type).view({-1, 1, 1}));
      sum_k.mul_(decay->to(type).view({-1, 1}));
    }
    kv.add_(k_features[row].unsqueeze(-1) * values[row].unsqueeze(-2));
    sum_k.add_(k_features[row]);
    const Tensor denominator = (q_features[row] * sum_k).sum(-1, /*keepdim=*/true);
    y[row].copy_((q_features[row].unsqueeze(-1) * kv).sum(-2) / denominator);
  }
  return y.to(v.scalar_type());
}

}  // namespace based::ops
