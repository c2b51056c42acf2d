#include "based/ops/taylor_deferred.h"

#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/taylor_attention_reference.h"

namespace based::ops {
namespace {

using kernels::kTaylorWaiting;
constexpr const char* kStep = "taylor_deferred_step";
constexpr const char* kSettle = "taylor_deferred_settle_";

void check_waiting(const char* op, const TaylorState& state, const TaylorWaiting& waiting, const OptionalTensor& decay) {
  require_shape(op, "waiting_k", waiting.k, {-1, -1, kTaylorWaiting, -1});
  const int64_t slots = waiting.k.size(0), heads = waiting.k.size(1), features = kernels::packed_features(waiting.k.size(3));
  require_shape(op, "waiting_v", waiting.v, {slots, heads, kTaylorWaiting, -1});
  require_like(op, "waiting_v", waiting.v, waiting.k);
  require_shape(op, "waiting", waiting.count, {slots, heads});
  require_type(op, "waiting", waiting.count, at::kInt);
  require_shape(op, "kv_state", state.kv, {slots, heads, features, waiting.v.size(3)});
  require_shape(op, "k_state", state.k, {slots, heads, features});
  require_type(op, "kv_state", state.kv, sum_type(waiting.k));
  require_type(op, "k_state", state.k, sum_type(waiting.k));
  if (decay) require_shape(op, "decay", *decay, {heads});
  for (const Tensor& tensor : {state.kv, state.k, waiting.k, waiting.v, waiting.count})
    require(tensor.is_contiguous(), op, "the state and what waits must be contiguous");
}

void check_step(const Tensor& q, const Tensor& k, const Tensor& v, const TaylorState& state, const TaylorWaiting& waiting,
                const Tensor& slots, const OptionalTensor& decay) {
  check_taylor_attention_step(kStep, q, k, v, state.kv, state.k, slots, decay);
  check_waiting(kStep, state, waiting, decay);
  require_like(kStep, "waiting_k", waiting.k, q);
  require_shape(kStep, "waiting_k", waiting.k, {-1, q.size(1), kTaylorWaiting, q.size(2)});
}

// decay^n of each head, [heads].
Tensor powers(const OptionalTensor& decay, int64_t n, const Tensor& like) {
  return decay ? decay->to(like.scalar_type()).pow(n) : at::ones({like.size(0)}, like.options());
}

// A slot's share: what waits is added as taylor_attention_step's reference adds a token.
void settle_slot(const TaylorState& state, const TaylorWaiting& waiting, int64_t slot, const OptionalTensor& decay) {
  Tensor kv = state.kv.select(0, slot), sums = state.k.select(0, slot), count = waiting.count.select(0, slot);
  const Tensor features = taylor_features(waiting.k.select(0, slot).to(kv.scalar_type())),
               values = waiting.v.select(0, slot).to(kv.scalar_type());
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

Tensor step_reference(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor waiting_k,
                      Tensor waiting_v, Tensor count, const Tensor& slots, const OptionalTensor& decay, double scale) {
  const TaylorState state{kv_state, k_state};
  const TaylorWaiting waiting{waiting_k, waiting_v, count};
  check_step(q, k, v, state, waiting, slots, decay);
  const at::ScalarType type = sum_type(q);
  const Tensor queries = (q * scale).to(q.scalar_type()), keys = (k * scale).to(k.scalar_type());
  Tensor y = at::empty_like(v);
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), before = count[slot][0].item<int64_t>();
    waiting_k.select(0, slot).select(1, before).copy_(keys[row]);
    waiting_v.select(0, slot).select(1, before).copy_(v[row]);
    count[slot].fill_(before + 1);
    const Tensor query = queries[row].to(type), sums = k_state[slot], features = taylor_features(query);  // [heads, …]
    const Tensor past = powers(decay, before + 1, sums);
    Tensor numerator = (features.unsqueeze(-1) * kv_state[slot]).sum(-2) * past.unsqueeze(-1);
    Tensor denominator = (features * sums).sum(-1) * past;
    for (int64_t t = 0; t <= before; ++t) {
      const Tensor s = (query * waiting_k[slot].select(1, t).to(type)).sum(-1);
      const Tensor weight = (1 + s + s * s / 2) * powers(decay, before - t, sums);
      numerator += weight.unsqueeze(-1) * waiting_v[slot].select(1, t).to(type);
      denominator += weight;
    }
    y[row].copy_(numerator / denominator.unsqueeze(-1));
    if (before + 1 == kTaylorWaiting) settle_slot(state, waiting, slot, decay);
  }
  return y;
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor waiting_k, Tensor waiting_v,
                 Tensor count, const Tensor& slots, const OptionalTensor& decay, double) {
  check_step(q, k, v, {kv_state, k_state}, {waiting_k, waiting_v, count}, slots, decay);
  return at::empty(v.sizes(), v.options());
}

void check_settle(const TaylorState& state, const TaylorWaiting& waiting, const Tensor& slots, const OptionalTensor& decay) {
  check_waiting(kSettle, state, waiting, decay);
  require_slots(kSettle, slots, slots.dim() == 1 ? slots.size(0) : -1, state.kv.size(0));
}

void settle_reference(Tensor kv_state, Tensor k_state, const Tensor& waiting_k, const Tensor& waiting_v, Tensor count, const Tensor& slots,
                      const OptionalTensor& decay) {
  check_settle({kv_state, k_state}, {waiting_k, waiting_v, count}, slots, decay);
  for (int64_t row = 0; row < slots.size(0); ++row)
    settle_slot({kv_state, k_state}, {waiting_k, waiting_v, count}, slots[row].item<int64_t>(), decay);
}

void settle_meta(Tensor kv_state, Tensor k_state, const Tensor& waiting_k, const Tensor& waiting_v, Tensor count, const Tensor& slots,
                 const OptionalTensor& decay) {
  check_settle({kv_state, k_state}, {waiting_k, waiting_v, count}, slots, decay);
}

void settle_autograd(Tensor kv_state, Tensor k_state, const Tensor& waiting_k, const Tensor& waiting_v, Tensor count, const Tensor& slots,
                     const OptionalTensor& decay) {
  require_no_gradient(kSettle, {kv_state, k_state, waiting_k, waiting_v});
  static const auto op = find_operator<decltype(settle_reference)>("based::taylor_deferred_settle_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(kv_state, k_state, waiting_k, waiting_v, count, slots, decay);
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor waiting_k, Tensor waiting_v,
                     Tensor count, const Tensor& slots, const OptionalTensor& decay, double scale) {
  require_no_gradient(kStep, {q, k, v, kv_state, k_state});
  static const auto op = find_operator<decltype(step_reference)>("based::taylor_deferred_step");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(q, k, v, kv_state, k_state, waiting_k, waiting_v, count, slots, decay, scale);
}

// Of `rows` rows of one token, without memory.
kernels::TaylorAttention shape_of(const TaylorState& state, int64_t feature_dim, const Tensor& activations, int64_t rows) {
  kernels::TaylorAttention p;
  p.tokens = p.rows = rows, p.heads = static_cast<int32_t>(state.kv.size(1)), p.feature_dim = static_cast<int32_t>(feature_dim);
  p.head_dim = static_cast<int32_t>(state.kv.size(3)), p.dtype = kernel_dtype(activations);
  return p;
}

kernels::TaylorDeferred beside(const kernels::TaylorAttention& step, const TaylorWaiting& waiting) {
  return {step, waiting.k.mutable_data_ptr(), waiting.v.mutable_data_ptr(), waiting.count.mutable_data_ptr<int32_t>()};
}

}  // namespace

Tensor taylor_deferred_step_with(const TaylorDeferredKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const TaylorState& state, const TaylorWaiting& waiting, const Tensor& slots, const OptionalTensor& decay,
                                 double scale) {
  const auto reference = [&] {  // which checks
    return step_reference(q, k, v, state.kv, state.k, waiting.k, waiting.v, waiting.count, slots, decay, scale);
  };
  if (!uses_kernel(kStep, q)) return reference();
  check_step(q, k, v, state, waiting, slots, decay);
  TaylorStepLaunch launch = prepare_taylor_step(q, k, v, state, slots, decay);
  launch.arguments.scale = static_cast<float>(scale);
  if (!uses_kernel(kStep, q, table.takes(launch.arguments))) return reference();
  require_ok(table.step(beside(launch.arguments, waiting)));
  return launch.y;
}

void taylor_deferred_settle_with(const TaylorDeferredKernels& table, const TaylorState& state, const TaylorWaiting& waiting,
                                 const Tensor& slots, const OptionalTensor& decay) {
  if (!uses_kernel(kSettle, waiting.k)) return settle_reference(state.kv, state.k, waiting.k, waiting.v, waiting.count, slots, decay);
  check_settle(state, waiting, slots, decay);
  const Tensor slot = slots.contiguous(), rates = decay ? decay->to(at::kFloat).contiguous() : Tensor();
  kernels::TaylorAttention p = shape_of(state, waiting.k.size(3), waiting.k, slot.size(0));
  p.kv_state = state.kv.mutable_data_ptr<float>(), p.k_state = state.k.mutable_data_ptr<float>();
  p.slot = slot.const_data_ptr<int64_t>(), p.decay = decay ? rates.const_data_ptr<float>() : nullptr;
  require_ok(table.settle(beside(p, waiting)));
}

TaylorWaiting taylor_waiting(const TaylorState& state, int64_t feature_dim, at::ScalarType type) {
  const auto options = state.kv.options().dtype(type);
  const int64_t slots = state.kv.size(0), heads = state.kv.size(1), head_dim = state.kv.size(3);
  return {at::zeros({slots, heads, kTaylorWaiting, feature_dim}, options), at::zeros({slots, heads, kTaylorWaiting, head_dim}, options),
          at::zeros({slots, heads}, options.dtype(at::kInt))};
}

Tensor taylor_deferred_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, TaylorWaiting& waiting,
                            const Tensor& slots, const OptionalTensor& decay, double scale) {
  static const auto op = find_operator<decltype(step_reference)>("based::taylor_deferred_step");
  return op.call(q, k, v, state.kv, state.k, waiting.k, waiting.v, waiting.count, slots, decay, scale);
}

void taylor_deferred_settle_(TaylorState& state, TaylorWaiting& waiting, const Tensor& slots, const OptionalTensor& decay) {
  static const auto op = find_operator<decltype(settle_reference)>("based::taylor_deferred_settle_");
  op.call(state.kv, state.k, waiting.k, waiting.v, waiting.count, slots, decay);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "taylor_deferred_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor(c!) waiting_k, "
      "Tensor(d!) waiting_v, Tensor(e!) waiting, Tensor slots, Tensor? decay=None, float scale=1.0) -> Tensor");
  m.def(
      "taylor_deferred_settle_(Tensor(a!) kv_state, Tensor(b!) k_state, Tensor waiting_k, Tensor waiting_v, Tensor(c!) waiting, "
      "Tensor slots, Tensor? decay=None) -> ()");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("taylor_deferred_step", step_reference);
  m.impl("taylor_deferred_settle_", settle_reference);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("taylor_deferred_step", step_meta);
  m.impl("taylor_deferred_settle_", settle_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("taylor_deferred_step", step_autograd);
  m.impl("taylor_deferred_settle_", settle_autograd);
}

}  // namespace
}  // namespace based::ops
