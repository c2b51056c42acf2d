#include "based/ops/taylor_deferred.h"

#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/taylor_attention_reference.h"

namespace based::ops {
namespace {

using kernels::kTaylorPending;
constexpr const char* kStep = "taylor_deferred_step";
constexpr const char* kFlush = "taylor_deferred_flush_";

void check_pending(const char* op, const TaylorState& state, const TaylorPending& pending, const OptionalTensor& decay) {
  require_shape(op, "pending_k", pending.k, {-1, -1, kTaylorPending, -1});
  const int64_t slots = pending.k.size(0), heads = pending.k.size(1), features = kernels::packed_features(pending.k.size(3));
  require_shape(op, "pending_v", pending.v, {slots, heads, kTaylorPending, -1});
  require_like(op, "pending_v", pending.v, pending.k);
  require_shape(op, "pending", pending.count, {slots, heads});
  require_type(op, "pending", pending.count, at::kInt);
  require_shape(op, "kv_state", state.kv, {slots, heads, features, pending.v.size(3)});
  require_shape(op, "k_state", state.k, {slots, heads, features});
  require_type(op, "kv_state", state.kv, sum_type(pending.k));
  require_type(op, "k_state", state.k, sum_type(pending.k));
  if (decay) require_shape(op, "decay", *decay, {heads});
  for (const Tensor& tensor : {state.kv, state.k, pending.k, pending.v, pending.count})
    require(tensor.is_contiguous(), op, "the state and what waits must be contiguous");
}

void check_step(const Tensor& q, const Tensor& k, const Tensor& v, const TaylorState& state, const TaylorPending& pending,
                const Tensor& slots, const OptionalTensor& decay) {
  check_taylor_attention_step(kStep, q, k, v, state.kv, state.k, slots, decay);
  check_pending(kStep, state, pending, decay);
  require_like(kStep, "pending_k", pending.k, q);
  require_shape(kStep, "pending_k", pending.k, {-1, q.size(1), kTaylorPending, q.size(2)});
}

// decay^n of each head, [heads].
Tensor powers(const OptionalTensor& decay, int64_t n, const Tensor& like) {
  return decay ? decay->to(like.scalar_type()).pow(n) : at::ones({like.size(0)}, like.options());
}

// A slot's share: what waits is added as taylor_attention_step's reference adds a token.
void flush_slot(const TaylorState& state, const TaylorPending& pending, int64_t slot, const OptionalTensor& decay) {
  Tensor kv = state.kv.select(0, slot), sums = state.k.select(0, slot), count = pending.count.select(0, slot);
  const Tensor features = taylor_features(pending.k.select(0, slot).to(kv.scalar_type())),
               values = pending.v.select(0, slot).to(kv.scalar_type());
  const int64_t tokens = count[0].item<int64_t>();
  for (int64_t t = 0; t < tokens; ++t) {
    if (decay) {
      const Tensor rate = decay->to(kv.scalar_type());
      kv.mul_(rate.view({-1, 1, 1})), sums.mul_(rate.view({-1, 1}));
    }
    kv.add_(features.select(1, t).unsqueeze(-1) * values.select(1, t).unsqueeze(-2));
    sums.add_(features.select(1, t));
  }
  count.zero_();
}

Tensor step_reference(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor pending_k,
                      Tensor pending_v, Tensor count, const Tensor& slots, const OptionalTensor& decay, double scale) {
  const TaylorState state{kv_state, k_state};
  const TaylorPending pending{pending_k, pending_v, count};
  check_step(q, k, v, state, pending, slots, decay);
  const at::ScalarType type = sum_type(q);
  const Tensor queries = (q * scale).to(q.scalar_type()), keys = (k * scale).to(k.scalar_type());
  Tensor y = at::empty_like(v);
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), before = count[slot][0].item<int64_t>();
    pending_k.select(0, slot).select(1, before).copy_(keys[row]);
    pending_v.select(0, slot).select(1, before).copy_(v[row]);
    count[slot].fill_(before + 1);
    const Tensor query = queries[row].to(type), sums = k_state[slot], features = taylor_features(query);  // [heads, …]
    const Tensor past = powers(decay, before + 1, sums);
    Tensor numerator = (features.unsqueeze(-1) * kv_state[slot]).sum(-2) * past.unsqueeze(-1);
    Tensor denominator = (features * sums).sum(-1) * past;
    for (int64_t t = 0; t <= before; ++t) {
      const Tensor s = (query * pending_k[slot].select(1, t).to(type)).sum(-1);
      const Tensor weight = (1 + s + s * s / 2) * powers(decay, before - t, sums);
      numerator += weight.unsqueeze(-1) * pending_v[slot].select(1, t).to(type);
      denominator += weight;
    }
    y[row].copy_(numerator / denominator.unsqueeze(-1));
    if (before + 1 == kTaylorPending) flush_slot(state, pending, slot, decay);
  }
  return y;
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor pending_k, Tensor pending_v,
                 Tensor count, const Tensor& slots, const OptionalTensor& decay, double) {
  check_step(q, k, v, {kv_state, k_state}, {pending_k, pending_v, count}, slots, decay);
  return at::empty(v.sizes(), v.options());
}

void check_flush(const TaylorState& state, const TaylorPending& pending, const Tensor& slots, const OptionalTensor& decay) {
  check_pending(kFlush, state, pending, decay);
  require_slots(kFlush, slots, slots.dim() == 1 ? slots.size(0) : -1, state.kv.size(0));
}

void flush_reference(Tensor kv_state, Tensor k_state, const Tensor& pending_k, const Tensor& pending_v, Tensor count, const Tensor& slots,
                     const OptionalTensor& decay) {
  check_flush({kv_state, k_state}, {pending_k, pending_v, count}, slots, decay);
  for (int64_t row = 0; row < slots.size(0); ++row)
    flush_slot({kv_state, k_state}, {pending_k, pending_v, count}, slots[row].item<int64_t>(), decay);
}

void flush_meta(Tensor kv_state, Tensor k_state, const Tensor& pending_k, const Tensor& pending_v, Tensor count, const Tensor& slots,
                const OptionalTensor& decay) {
  check_flush({kv_state, k_state}, {pending_k, pending_v, count}, slots, decay);
}

void flush_autograd(Tensor kv_state, Tensor k_state, const Tensor& pending_k, const Tensor& pending_v, Tensor count, const Tensor& slots,
                    const OptionalTensor& decay) {
  require_no_gradient(kFlush, {kv_state, k_state, pending_k, pending_v});
  static const auto op = find_operator<decltype(flush_reference)>("based::taylor_deferred_flush_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(kv_state, k_state, pending_k, pending_v, count, slots, decay);
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor pending_k, Tensor pending_v,
                     Tensor count, const Tensor& slots, const OptionalTensor& decay, double scale) {
  require_no_gradient(kStep, {q, k, v, kv_state, k_state});
  static const auto op = find_operator<decltype(step_reference)>("based::taylor_deferred_step");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(q, k, v, kv_state, k_state, pending_k, pending_v, count, slots, decay, scale);
}

// Of `rows` rows of one token, without memory.
kernels::TaylorAttention shape_of(const TaylorState& state, int64_t feature_dim, const Tensor& activations, int64_t rows) {
  kernels::TaylorAttention p;
  p.tokens = p.rows = rows, p.heads = static_cast<int32_t>(state.kv.size(1)), p.feature_dim = static_cast<int32_t>(feature_dim);
  p.head_dim = static_cast<int32_t>(state.kv.size(3)), p.dtype = kernel_dtype(activations);
  return p;
}

kernels::TaylorDeferred beside(const kernels::TaylorAttention& step, const TaylorPending& pending) {
  return {step, pending.k.mutable_data_ptr(), pending.v.mutable_data_ptr(), pending.count.mutable_data_ptr<int32_t>()};
}

}  // namespace

Tensor taylor_deferred_step_with(const TaylorDeferredKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const TaylorState& state, const TaylorPending& pending, const Tensor& slots, const OptionalTensor& decay,
                                 double scale) {
  const auto reference = [&] {  // which checks
    return step_reference(q, k, v, state.kv, state.k, pending.k, pending.v, pending.count, slots, decay, scale);
  };
  if (!uses_kernel(kStep, q)) return reference();
  check_step(q, k, v, state, pending, slots, decay);
  TaylorStepLaunch launch = prepare_taylor_step(q, k, v, state, slots, decay);
  launch.arguments.scale = static_cast<float>(scale);
  if (!uses_kernel(kStep, q, table.takes(launch.arguments))) return reference();
  require_ok(table.step(beside(launch.arguments, pending)));
  return launch.y;
}

void taylor_deferred_flush_with(const TaylorDeferredKernels& table, const TaylorState& state, const TaylorPending& pending,
                                const Tensor& slots, const OptionalTensor& decay) {
  if (!uses_kernel(kFlush, pending.k)) return flush_reference(state.kv, state.k, pending.k, pending.v, pending.count, slots, decay);
  check_flush(state, pending, slots, decay);
  const Tensor slot = slots.contiguous(), rates = decay ? decay->to(at::kFloat).contiguous() : Tensor();
  kernels::TaylorAttention p = shape_of(state, pending.k.size(3), pending.k, slot.size(0));
  p.kv_state = state.kv.mutable_data_ptr<float>(), p.k_state = state.k.mutable_data_ptr<float>();
  p.slot = slot.const_data_ptr<int64_t>(), p.decay = decay ? rates.const_data_ptr<float>() : nullptr;
  require_ok(table.flush(beside(p, pending)));
}

TaylorPending taylor_pending(const TaylorState& state, int64_t feature_dim, at::ScalarType type) {
  const auto options = state.kv.options().dtype(type);
  const int64_t slots = state.kv.size(0), heads = state.kv.size(1), head_dim = state.kv.size(3);
  return {at::zeros({slots, heads, kTaylorPending, feature_dim}, options), at::zeros({slots, heads, kTaylorPending, head_dim}, options),
          at::zeros({slots, heads}, options.dtype(at::kInt))};
}

Tensor taylor_deferred_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, TaylorPending& pending,
                            const Tensor& slots, const OptionalTensor& decay, double scale) {
  static const auto op = find_operator<decltype(step_reference)>("based::taylor_deferred_step");
  return op.call(q, k, v, state.kv, state.k, pending.k, pending.v, pending.count, slots, decay, scale);
}

void taylor_deferred_flush_(TaylorState& state, TaylorPending& pending, const Tensor& slots, const OptionalTensor& decay) {
  static const auto op = find_operator<decltype(flush_reference)>("based::taylor_deferred_flush_");
  op.call(state.kv, state.k, pending.k, pending.v, pending.count, slots, decay);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "taylor_deferred_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor(c!) pending_k, "
      "Tensor(d!) pending_v, Tensor(e!) pending, Tensor slots, Tensor? decay=None, float scale=1.0) -> Tensor");
  m.def(
      "taylor_deferred_flush_(Tensor(a!) kv_state, Tensor(b!) k_state, Tensor pending_k, Tensor pending_v, Tensor(c!) pending, "
      "Tensor slots, Tensor? decay=None) -> ()");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("taylor_deferred_step", step_reference);
  m.impl("taylor_deferred_flush_", flush_reference);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("taylor_deferred_step", step_meta);
  m.impl("taylor_deferred_flush_", flush_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("taylor_deferred_step", step_autograd);
  m.impl("taylor_deferred_flush_", flush_autograd);
}

}  // namespace
}  // namespace based::ops
