#include "based/ops/taylor/taylor_deferred.h"

#include "based/kernels/taylor/deferred.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

using kernels::kTaylorPending;
using kernels::TaylorDeferredLaunchers;
constexpr const char* kTaylorDeferredStep = "taylor_deferred_step";
constexpr const char* kFlush = "taylor_deferred_flush_";

template <class Op>
void check_pending(const char* op, const Op& in) {
  require_shape(op, "pending_k", in.pending_k, {-1, -1, kTaylorPending, -1});
  const int64_t slots = in.pending_k.size(0), heads = in.pending_k.size(1), features = kernels::packed_features(in.pending_k.size(3));
  require_shape(op, "pending_v", in.pending_v, {slots, heads, kTaylorPending, -1});
  require_like(op, "pending_v", in.pending_v, in.pending_k);
  require_shape(op, "pending", in.pending, {slots, heads});
  require_type(op, "pending", in.pending, at::kInt);
  require_shape(op, "kv_state", in.kv_state, {slots, heads, features, in.pending_v.size(3)});
  require_shape(op, "k_state", in.k_state, {slots, heads, features});
  require_type(op, "kv_state", in.kv_state, sum_type(in.pending_k));
  require_type(op, "k_state", in.k_state, sum_type(in.pending_k));
  if (in.decay) require_shape(op, "decay", *in.decay, {heads});
  for (const Tensor& tensor : {in.kv_state, in.k_state, in.pending_k, in.pending_v, in.pending})
    require(tensor.is_contiguous(), op, "the state and what is pending must be contiguous");
}

TaylorAttentionStep step_of(const TaylorDeferredStep& in) {
  return {in.q, in.k, in.v, in.kv_state, in.k_state, in.slots, in.decay, in.scale, in.decay_denominator};
}

void check(const TaylorDeferredStep& in) {
  check_taylor_attention_step(kTaylorDeferredStep, step_of(in));
  check_pending(kTaylorDeferredStep, in);
  require_like(kTaylorDeferredStep, "pending_k", in.pending_k, in.q);
  require_shape(kTaylorDeferredStep, "pending_k", in.pending_k, {-1, in.q.size(1), kTaylorPending, in.q.size(2)});
}

void check(const TaylorDeferredFlush& in) {
  check_pending(kFlush, in);
  require_slots(kFlush, in.slots, in.slots.dim() == 1 ? in.slots.size(0) : -1, in.kv_state.size(0));
}

// decay^n of each head, [heads].
Tensor powers(const OptionalTensor& decay, int64_t n, const Tensor& like) {
  return decay ? decay->to(like.scalar_type()).pow(n) : at::ones({like.size(0)}, like.options());
}

// Adds the pending tokens of one slot, each as the reference of taylor_attention_step adds a token.
template <class Op>
void flush_slot(const Op& in, int64_t slot) {
  const OptionalTensor& decay = in.decay;
  Tensor kv = in.kv_state.select(0, slot), sums = in.k_state.select(0, slot), count = in.pending.select(0, slot);
  const Tensor features = taylor_features(in.pending_k.select(0, slot).to(kv.scalar_type())),
               values = in.pending_v.select(0, slot).to(kv.scalar_type());
  const int64_t tokens = kernels::taylor_pending_tokens(count[0].item<int32_t>());
  for (int64_t t = 0; t < tokens; ++t) {
    if (decay) {
      const Tensor rate = decay->to(kv.scalar_type());
      kv.mul_(rate.view({-1, 1, 1}));
      if (in.decay_denominator) sums.mul_(rate.view({-1, 1}));
    }
    kv.add_(features.select(1, t).unsqueeze(-1) * values.select(1, t).unsqueeze(-2));
    sums.add_(features.select(1, t));
  }
  count.zero_();
}

Tensor step_reference(const TaylorDeferredStep& in) {
  const auto& [q, k, v, kv_state, k_state, pending_k, pending_v, count, slots, decay, scale, decay_denominator] = in;
  check(in);
  const at::ScalarType type = sum_type(q);
  const OptionalTensor sums_decay = decay_denominator ? decay : std::nullopt;
  const Tensor queries = (q * scale).to(q.scalar_type()), keys = (k * scale).to(k.scalar_type());
  Tensor y = at::empty_like(v);
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), before = count[slot][0].item<int64_t>();
    pending_k.select(0, slot).select(1, before).copy_(keys[row]);
    pending_v.select(0, slot).select(1, before).copy_(v[row]);
    count[slot].fill_(before + 1);
    const Tensor query = queries[row].to(type), sums = k_state[slot], features = taylor_features(query);  // [heads, …]
    Tensor numerator = (features.unsqueeze(-1) * kv_state[slot]).sum(-2) * powers(decay, before + 1, sums).unsqueeze(-1);
    Tensor denominator = (features * sums).sum(-1) * powers(sums_decay, before + 1, sums);
    for (int64_t t = 0; t <= before; ++t) {
      const Tensor s = (query * pending_k[slot].select(1, t).to(type)).sum(-1);
      const Tensor weight = 1 + s + s * s / 2;
      numerator += (weight * powers(decay, before - t, sums)).unsqueeze(-1) * pending_v[slot].select(1, t).to(type);
      denominator += weight * powers(sums_decay, before - t, sums);
    }
    y[row].copy_(numerator / denominator.unsqueeze(-1));
    if (before + 1 == kTaylorPending) flush_slot(in, slot);
  }
  return y;
}

Tensor step_meta(const TaylorDeferredStep& in) {
  check(in);
  return at::empty(in.v.sizes(), in.v.options());
}

void flush_reference(const TaylorDeferredFlush& in) {
  check(in);
  for (int64_t row = 0; row < in.slots.size(0); ++row) flush_slot(in, in.slots[row].item<int64_t>());
}

template <class Op>
kernels::TaylorDeferred with_pending(const kernels::TaylorAttention& step, const Op& in) {
  return {step, in.pending_k.mutable_data_ptr(), in.pending_v.mutable_data_ptr(), in.pending.template mutable_data_ptr<int32_t>()};
}

Tensor step(const TaylorDeferredStep& in) {
  const TaylorDeferredLaunchers* table = launchers_for<TaylorDeferredLaunchers>(kTaylorDeferredStep, in.q);
  if (table == nullptr) return step_reference(in);
  check(in);
  TaylorStepLaunch launch = prepare_taylor_step(step_of(in));
  launch.arguments.scale = static_cast<float>(in.scale);
  if (!uses_kernel(kTaylorDeferredStep, in.q, table->supports(launch.arguments))) return step_reference(in);
  require_ok(table->step(with_pending(launch.arguments, in), queue_of(in.q)));
  return launch.y;
}

void flush(const TaylorDeferredFlush& in) {
  const TaylorDeferredLaunchers* table = launchers_for<TaylorDeferredLaunchers>(kFlush, in.pending_k);
  if (table == nullptr) return flush_reference(in);
  check(in);
  const Tensor slot = in.slots.contiguous(), rates = in.decay ? in.decay->to(at::kFloat).contiguous() : Tensor();
  kernels::TaylorAttention p;  // one token a row
  p.tokens = p.rows = slot.size(0), p.heads = static_cast<int32_t>(in.kv_state.size(1));
  p.feature_dim = static_cast<int32_t>(in.pending_k.size(3)), p.head_dim = static_cast<int32_t>(in.kv_state.size(3));
  p.dtype = kernel_dtype(in.pending_k);
  p.kv_state = in.kv_state.mutable_data_ptr<float>(), p.k_state = in.k_state.mutable_data_ptr<float>();
  p.slot = slot.const_data_ptr<int64_t>(), p.decay = in.decay ? rates.const_data_ptr<float>() : nullptr;
  p.decay_denominator = in.decay_denominator;
  require_ok(table->flush(with_pending(p, in), queue_of(in.pending_k)));
}

}  // namespace

TaylorPending taylor_pending(const TaylorState& state, int64_t feature_dim, at::ScalarType type) {
  const auto options = state.kv.options().dtype(type);
  const int64_t slots = state.kv.size(0), heads = state.kv.size(1), head_dim = state.kv.size(3);
  return {at::zeros({slots, heads, kTaylorPending, feature_dim}, options), at::zeros({slots, heads, kTaylorPending, head_dim}, options),
          at::zeros({slots, heads}, options.dtype(at::kInt))};
}

Tensor taylor_deferred_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, TaylorPending& pending,
                            const Tensor& slots, const TaylorDecay& decay, double scale) {
  return call(
      TaylorDeferredStep{q, k, v, state.kv, state.k, pending.k, pending.v, pending.count, slots, decay.rates, scale, decay.denominator});
}

void taylor_deferred_flush_(TaylorState& state, TaylorPending& pending, const Tensor& slots, const TaylorDecay& decay) {
  call(TaylorDeferredFlush{state.kv, state.k, pending.k, pending.v, pending.count, slots, decay.rates, decay.denominator});
}

namespace {

Result<TaylorDeferredFlush> taylor_deferred_flush_meta(const TaylorDeferredFlush& in) { check(in); }

}  // namespace

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<TaylorDeferredStep>(m).reference<step_reference>().meta<step_meta>().kernel<step>().without_gradient();
  define<TaylorDeferredFlush>(m).reference<flush_reference>().meta<taylor_deferred_flush_meta>().kernel<flush>().without_gradient();
}

}  // namespace based::ops
