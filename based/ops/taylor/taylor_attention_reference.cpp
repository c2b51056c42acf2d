// Taylor linear attention in ATen operators, differentiable by ATen's autograd: the listing, the quadratic form, and the chunked form that
// serves double precision and devices without a kernel.
#include "based/ops/taylor/taylor_attention_reference.h"

#include "based/kernels/taylor/taylor.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear_attention/running_sums.h"

namespace based::ops {
namespace {

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

// The state before the run; new memory where it is zero.
Tensor state_before(const SumsOfRun& in) {
  if (in.state.defined()) return in.state;
  return at::zeros({in.v.size(0), in.v.size(1), kernels::packed_features(in.q.size(3)), in.v.size(3)}, in.v.options());
}

// The paper's listing: adds a token's features to the sums, then reads the sums with its query.
RunForm listing(const Tensor& decay) {
  return [decay](const SumsOfRun& in) {
    const Tensor q_features = taylor_features(in.q), k_features = taylor_features(in.k);
    Tensor state = state_before(in);
    std::vector<Tensor> sums;
    for (int64_t t = 0; t < in.q.size(2); ++t) {
      if (decay.defined()) state = state * decay.view({-1, 1, 1});
      state = state + k_features.select(2, t).unsqueeze(-1) * in.v.select(2, t).unsqueeze(-2);
      sums.push_back((q_features.select(2, t).unsqueeze(-1) * state).sum(-2));
    }
    return RunResult{sums.empty() ? at::zeros_like(in.v) : at::stack(sums, 2), state};
  };
}

RunForm chunked(const Tensor& decay) {
  const auto chunk = [decay](const SumsOfRun& in) {
    const Tensor within = at::matmul(causal_weights(in.q, in.k, decay), in.v);
    Tensor state = state_before(in), before = at::matmul(taylor_features(in.q), state), k_features = taylor_features(in.k);
    if (decay.defined()) {
      const int64_t size = in.q.size(2);
      const Tensor position = at::arange(size, in.q.options());
      before = before * decay_power(decay, position + 1).unsqueeze(-1);
      k_features = k_features * decay_power(decay, size - 1 - position).unsqueeze(-1);
      state = state * decay.pow(size).view({-1, 1, 1});
    }
    return RunResult{within + before, state + at::matmul(k_features.transpose(-1, -2), in.v)};
  };
  return [chunk](const SumsOfRun& in) { return by_chunks(in, 64, chunk); };
}

RunForm quadratic(const Tensor& decay) {
  return [decay](const SumsOfRun& in) { return RunResult{at::matmul(causal_weights(in.q, in.k, decay), in.v), in.state}; };
}

// The first head_dim columns of the sums, which are the numerator's, by one form and the others by another.
RunForm by_columns(int64_t head_dim, const RunForm& numerator, const RunForm& denominator) {
  return [=](const SumsOfRun& in) {
    const auto part = [&](const RunForm& form, int64_t first, int64_t count) {
      const Tensor state = in.state.defined() ? in.state.narrow(-1, first, count) : Tensor();
      return form({in.q, in.k, in.v.narrow(-1, first, count), state, in.keeps_state});
    };
    const RunResult left = part(numerator, 0, head_dim), right = part(denominator, head_dim, in.v.size(-1) - head_dim);
    return RunResult{at::cat({left.sums, right.sums}, -1), left.state.defined() ? at::cat({left.state, right.state}, -1) : Tensor()};
  };
}

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

TaylorForward by_form(const TaylorAttention& in, RunForm (*form)(const Tensor& decay)) {
  check_taylor_attention("taylor_attention", in);
  const at::ScalarType type = sum_type(in.q);
  const PackedSums sums{"taylor_attention", in.q.to(type),       in.k.to(type),      in.v,
                        in.cu_seqlens,      in.initial_kv_state, in.initial_k_state, kernels::packed_features(in.q.size(2))};
  RunForm run = form(in.decay ? in.decay->to(type) : Tensor());
  if (in.decay && !in.decay_denominator) run = by_columns(in.v.size(2), run, form(Tensor()));
  const AttentionSums out = over_runs(sums, run);
  return {out.y, out.kv_state, out.k_state, out.denominator};
}

}  // namespace

TaylorForward taylor_attention_chunked(const TaylorAttention& in) { return by_form(in, chunked); }

std::tuple<Tensor, TaylorState> taylor_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                           const std::optional<TaylorState>& initial_state, const TaylorDecay& decay) {
  const OptionalTensor kv = initial_state ? OptionalTensor(initial_state->kv) : std::nullopt;
  const OptionalTensor sum_k = initial_state ? OptionalTensor(initial_state->k) : std::nullopt;
  const TaylorForward out = by_form({q, k, v, cu_seqlens, kv, sum_k, decay.rates, /*final_state=*/true, decay.denominator}, listing);
  return {out.y, {out.kv_state, out.k_state}};
}

Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const TaylorDecay& decay) {
  const OptionalTensor none;
  return by_form({q, k, v, cu_seqlens, none, none, decay.rates, /*final_state=*/true, decay.denominator}, quadratic).y;
}

Tensor taylor_attention_step_reference(const TaylorAttentionStep& in) {
  const auto& [q, k, v, kv_state, k_state, slots, decay, scale, decay_denominator] = in;
  const at::ScalarType type = sum_type(q);
  const Tensor q_features = taylor_features(q.to(type)), k_features = taylor_features(k.to(type)), values = v.to(type);
  Tensor y = at::empty_like(values);
  // Row by row, and sums by elementwise operators: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>();
    Tensor kv = kv_state.select(0, slot), sum_k = k_state.select(0, slot);
    if (decay) {
      kv.mul_(decay->to(type).view({-1, 1, 1}));
      if (decay_denominator) sum_k.mul_(decay->to(type).view({-1, 1}));
    }
    kv.add_(k_features[row].unsqueeze(-1) * values[row].unsqueeze(-2));
    sum_k.add_(k_features[row]);
    const Tensor denominator = (q_features[row] * sum_k).sum(-1, /*keepdim=*/true);
    y[row].copy_((q_features[row].unsqueeze(-1) * kv).sum(-2) / denominator);
  }
  return y.to(v.scalar_type());
}

}  // namespace based::ops
