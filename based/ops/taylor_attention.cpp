#include "based/ops/taylor_attention.h"

#include "based/kernels/taylor_attention.h"
#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/recompute.h"
#include "based/ops/rows.h"
#include "based/ops/split_columns.h"
#include "based/ops/taylor_attention_reference.h"

namespace based::ops {
namespace {

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor>;            // y, kv_state, k_state, denominator
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // of q, k, v, initial_kv_state, initial_k_state

constexpr const char* kPrefill = "taylor_attention_prefill";
constexpr const char* kStep = "taylor_attention_step";

void check_decay(const char* op, const OptionalTensor& decay, const Tensor& q) {
  if (!decay) return;
  require_shape(op, "decay", *decay, {q.size(1)});
  require(at::isFloatingType(decay->scalar_type()), op, "decay must be floating, got ", decay->scalar_type());
  if (!decay->is_cpu()) return;  // values on a device are not waited for
  const Tensor rates = decay->to(at::kDouble).contiguous();
  for (int64_t head = 0; head < rates.numel(); ++head) {
    const double rate = rates.const_data_ptr<double>()[head];
    require(rate > 0 && rate <= 1, op, "decay must be in (0, 1], got ", rate);
  }
}

void check_qkv(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  require(at::isFloatingType(q.scalar_type()), op, "q must be floating, got ", q.scalar_type());
  require_shape(op, "q", q, {-1, -1, -1});
  require(q.size(2) >= 1 && q.size(2) <= 64, op, "feature_dim must be 1..64, got ", q.size(2));
  require_like(op, "k", k, q);
  require_like(op, "v", v, q);
  require_shape(op, "k", k, q.sizes());
  require_shape(op, "v", v, {q.size(0), q.size(1), -1});
  require(v.size(2) >= 1, op, "head_dim must be at least 1, got ", v.size(2));
}

void check_state(const char* op, const Tensor& kv_state, const Tensor& k_state, int64_t rows, const Tensor& q, const Tensor& v) {
  const int64_t features = kernels::packed_features(q.size(2));
  require_shape(op, "kv_state", kv_state, {rows, q.size(1), features, v.size(2)});
  require_shape(op, "k_state", k_state, {rows, q.size(1), features});
  require_type(op, "kv_state", kv_state, sum_type(q));
  require_type(op, "k_state", k_state, sum_type(q));
}

Forward forward_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                          const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state, const OptionalTensor& decay) {
  const TaylorForward out = taylor_attention_chunked({q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay});
  return {out.y, out.kv_state.contiguous(), out.k_state.contiguous(), out.denominator.contiguous()};
}

Forward forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                     const OptionalTensor& initial_k_state, const OptionalTensor& decay) {
  check_taylor_attention("taylor_attention", {q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay});
  const int64_t rows = cu_seqlens.size(0) - 1, heads = q.size(1), features = kernels::packed_features(q.size(2));
  const at::TensorOptions sums = q.options().dtype(sum_type(q));
  return {at::empty(v.sizes(), v.options()), at::empty({rows, heads, features, v.size(2)}, sums), at::empty({rows, heads, features}, sums),
          at::empty({q.size(0), heads}, sums)};
}

Gradients backward_reference(const Tensor& grad_y, const OptionalTensor& grad_kv_state, const OptionalTensor& grad_k_state, const Tensor& q,
                             const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                             const OptionalTensor& initial_k_state, const OptionalTensor& decay, const Tensor&, const Tensor&) {
  const auto function = [&](const std::vector<Tensor>& in) {
    const TaylorForward out = taylor_attention_chunked({in[0], in[1], in[2], cu_seqlens, if_defined(in[3]), if_defined(in[4]), decay});
    return std::vector<Tensor>{out.y, out.kv_state, out.k_state};
  };
  const std::vector<Tensor> g =
      gradients_by_autograd(function, {q, k, v, value_or_undefined(initial_kv_state), value_or_undefined(initial_k_state)},
                            {grad_y, value_or_undefined(grad_kv_state), value_or_undefined(grad_k_state)});
  return {g[0], g[1], g[2], g[3], g[4]};
}

Gradients backward_meta(const Tensor&, const OptionalTensor&, const OptionalTensor&, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor&, const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state, const OptionalTensor&,
                        const Tensor&, const Tensor&) {
  return {at::empty_like(q), at::empty_like(k), at::empty_like(v), initial_kv_state ? at::empty_like(*initial_kv_state) : Tensor(),
          initial_k_state ? at::empty_like(*initial_k_state) : Tensor()};
}

// States that are updated in place, for `rows` of their slots.
void check_slots(const char* op, const Tensor& q, const Tensor& v, const Tensor& kv_state, const Tensor& k_state, const Tensor& slots,
                 int64_t rows) {
  check_state(op, kv_state, k_state, kv_state.dim() ? kv_state.size(0) : -1, q, v);
  require(kv_state.is_contiguous() && k_state.is_contiguous(), op, "the state must be contiguous");
  require_slots(op, slots, rows, kv_state.size(0));
}

void check_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const Tensor& kv_state,
                   const Tensor& k_state, const Tensor& slots, const OptionalTensor& decay) {
  check_taylor_attention(kPrefill, {q, k, v, cu_seqlens, {}, {}, decay});
  check_slots(kPrefill, q, v, kv_state, k_state, slots, cu_seqlens.size(0) - 1);
}

Tensor scaled(const Tensor& x, double scale) { return scale == 1 ? x : x * scale; }

Tensor step_reference(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, const Tensor& slots,
                      const OptionalTensor& decay, double scale) {
  check_taylor_attention_step(kStep, q, k, v, kv_state, k_state, slots, decay);
  TaylorState state{kv_state, k_state};
  return taylor_attention_step_reference(scaled(q, scale), scaled(k, scale), v, state, slots, decay);
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, const Tensor& slots,
                 const OptionalTensor& decay, double) {
  check_taylor_attention_step(kStep, q, k, v, kv_state, k_state, slots, decay);
  return at::empty(v.sizes(), v.options());
}

Tensor prefill_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor kv_state, Tensor k_state,
                         const Tensor& slots, const OptionalTensor& decay) {
  check_prefill(q, k, v, cu_seqlens, kv_state, k_state, slots, decay);
  const auto [y, kv, sum_k, denominator] =
      forward_reference(q, k, v, cu_seqlens, kv_state.index_select(0, slots), k_state.index_select(0, slots), decay);
  kv_state.index_copy_(0, slots, kv), k_state.index_copy_(0, slots, sum_k);
  return y;
}

Tensor prefill_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor kv_state, Tensor k_state,
                    const Tensor& slots, const OptionalTensor& decay) {
  check_prefill(q, k, v, cu_seqlens, kv_state, k_state, slots, decay);
  return at::empty(v.sizes(), v.options());
}

// Whether q, k and v are all the columns of one tensor.
bool are_columns(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto joined = joined_columns({q.flatten(1), k.flatten(1), v.flatten(1)});
  return joined && joined->is_contiguous() && joined->stride(0) <= std::numeric_limits<int32_t>::max();
}

kernels::TaylorAttention arguments_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay) {
  kernels::TaylorAttention to;
  to.q = q.const_data_ptr();
  to.k = k.const_data_ptr();
  to.v = v.const_data_ptr();
  if (decay.defined()) to.decay = static_cast<const float*>(decay.const_data_ptr());
  to.tokens = to.rows = q.size(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.feature_dim = static_cast<int32_t>(q.size(2));
  to.head_dim = static_cast<int32_t>(v.size(2));
  to.dtype = kernel_dtype(q);
  return to;
}

// `as_columns`: they stay where they are.
TaylorLaunch prepare(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& decay, bool as_columns = false) {
  const auto laid = [as_columns](const Tensor& x) { return as_columns ? x : x.contiguous(); };
  TaylorLaunch launch{laid(q), laid(k), laid(v), Tensor(), decay ? decay->to(at::kFloat).contiguous() : Tensor(), {}};
  kernels::TaylorAttention& to = launch.arguments;
  to = arguments_of(launch.q, launch.k, launch.v, launch.decay);
  if (as_columns) to.qk_stride = static_cast<int32_t>(q.stride(0)), to.v_stride = static_cast<int32_t>(v.stride(0));
  return launch;
}

TaylorLaunch prepare_rows(const TaylorAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                          const OptionalTensor& decay) {
  TaylorLaunch launch = prepare(q, k, v, decay, table.takes_strides != nullptr && are_columns(q, k, v));
  if (launch.arguments.qk_stride != 0 && !table.takes_strides(launch.arguments)) launch = prepare(q, k, v, decay);
  check_row_starts("taylor_attention", "cu_seqlens", cu_seqlens, q.size(0));
  launch.cu_seqlens = cu_seqlens.contiguous();
  launch.arguments.row_start = launch.cu_seqlens.const_data_ptr<int64_t>();
  launch.arguments.rows = cu_seqlens.size(0) - 1;
  return launch;
}

// Side by side, where q, k and v are.
std::tuple<Tensor, Tensor, Tensor> empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, bool as_columns) {
  if (!as_columns) return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  const int64_t narrow = q.size(1) * q.size(2), wide = v.size(1) * v.size(2);
  const auto parts = at::empty({q.size(0), 2 * narrow + wide}, q.options()).split_with_sizes({narrow, narrow, wide}, 1);
  return {parts[0].view(q.sizes()), parts[1].view(k.sizes()), parts[2].view(v.sizes())};
}

// Every weight is at least 1/2, so a denominator is at least half of the decayed number of tokens, which the state's first feature counts.
[[maybe_unused]] bool denominators_are_bounded(const TaylorLaunch& launch, const Tensor& denominator,
                                               const OptionalTensor& initial_k_state) {
  const kernels::TaylorAttention& in = launch.arguments;
  for (int64_t row = 0; row < in.rows; ++row)
    for (int64_t head = 0; head < in.heads; ++head) {
      double count = initial_k_state ? (*initial_k_state)[row][head][0].item<double>() : 0;
      for (int64_t token = in.row_start[row]; token < in.row_start[row + 1]; ++token) {
        count = count * (in.decay ? in.decay[head] : 1) + 1;
        if (!(denominator.const_data_ptr<float>()[token * in.heads + head] >= count / 2 * (1 - 1e-3))) return false;
      }
    }
  return true;
}

}  // namespace

Forward taylor_attention_forward_with(const TaylorAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                                      const OptionalTensor& initial_k_state, const OptionalTensor& decay) {
  if (!uses_kernel("taylor_attention", q)) return forward_reference(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
  check_taylor_attention("taylor_attention", {q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay});
  TaylorLaunch launch = prepare_rows(table, q, k, v, cu_seqlens, decay);
  const int64_t rows = launch.arguments.rows, heads = q.size(1), features = kernels::packed_features(q.size(2));
  const at::TensorOptions sums = q.options().dtype(at::kFloat);
  const auto start = [&](const OptionalTensor& initial, at::IntArrayRef sizes) {
    return initial ? initial->clone(at::MemoryFormat::Contiguous) : at::zeros(sizes, sums);
  };
  const Tensor kv_state = start(initial_kv_state, {rows, heads, features, v.size(2)});
  const Tensor k_state = start(initial_k_state, {rows, heads, features});
  const Tensor y = at::empty(v.sizes(), v.options()), denominator = at::empty({q.size(0), heads}, sums);
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.denominator = denominator.mutable_data_ptr<float>();
  launch.arguments.kv_state = kv_state.mutable_data_ptr<float>();
  launch.arguments.k_state = k_state.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), q);
  require_ok(table.forward(launch.arguments, scratch.mutable_data_ptr()));
  BASED_DEBUG_ASSERT(!y.is_cpu() || denominators_are_bounded(launch, denominator, initial_k_state));
  return {y, kv_state, k_state, denominator};
}

Gradients taylor_attention_backward_with(const TaylorAttentionKernels& table, const Tensor& grad_y, const OptionalTensor& grad_kv_state,
                                         const OptionalTensor& grad_k_state, const Tensor& q, const Tensor& k, const Tensor& v,
                                         const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                                         const OptionalTensor& initial_k_state, const OptionalTensor& decay, const Tensor& y,
                                         const Tensor& denominator) {
  if (!uses_kernel("taylor_attention_backward", q))
    return backward_reference(grad_y, grad_kv_state, grad_k_state, q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay, y,
                              denominator);
  TaylorLaunch launch = prepare_rows(table, q, k, v, cu_seqlens, decay);
  const int64_t rows = launch.arguments.rows, heads = q.size(1), features = kernels::packed_features(q.size(2));
  const at::TensorOptions sums = q.options().dtype(at::kFloat);
  const Tensor cotangent = grad_y.contiguous(), output = y.contiguous(), divisor = denominator.contiguous();
  launch.arguments.y = output.data_ptr();
  launch.arguments.denominator = divisor.data_ptr<float>();
  kernels::TaylorAttentionBackward to;
  to.forward = launch.arguments;
  to.grad_y = cotangent.const_data_ptr();
  const auto [grad_q, grad_k, grad_v] = empty_gradients(q, k, v, launch.arguments.qk_stride != 0);
  to.grad_q = grad_q.mutable_data_ptr();
  to.grad_k = grad_k.mutable_data_ptr();
  to.grad_v = grad_v.mutable_data_ptr();
  Tensor initial_kv, initial_k, grad_initial_kv, grad_initial_k, grad_kv, grad_k_sum;
  if (initial_kv_state) {
    initial_kv = initial_kv_state->contiguous(), initial_k = initial_k_state->contiguous();
    grad_initial_kv = at::empty(initial_kv.sizes(), sums), grad_initial_k = at::empty(initial_k.sizes(), sums);
    to.initial_kv_state = initial_kv.const_data_ptr<float>();
    to.initial_k_state = initial_k.const_data_ptr<float>();
    to.grad_initial_kv_state = grad_initial_kv.mutable_data_ptr<float>();
    to.grad_initial_k_state = grad_initial_k.mutable_data_ptr<float>();
  }
  if (grad_kv_state || grad_k_state) {
    grad_kv = grad_kv_state ? grad_kv_state->contiguous() : at::zeros({rows, heads, features, v.size(2)}, sums);
    grad_k_sum = grad_k_state ? grad_k_state->contiguous() : at::zeros({rows, heads, features}, sums);
    to.grad_kv_state = grad_kv.const_data_ptr<float>();
    to.grad_k_state = grad_k_sum.const_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table.backward_scratch(to), q);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  return {grad_q, grad_k, grad_v, grad_initial_kv, grad_initial_k};
}

Tensor taylor_attention_prefill_with(const TaylorAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& cu_seqlens, const TaylorState& state, const Tensor& slots, const OptionalTensor& decay) {
  if (!uses_kernel(kPrefill, q)) return prefill_reference(q, k, v, cu_seqlens, state.kv, state.k, slots, decay);
  check_prefill(q, k, v, cu_seqlens, state.kv, state.k, slots, decay);
  TaylorLaunch launch = prepare_rows(table, q, k, v, cu_seqlens, decay);
  const Tensor y = at::empty(v.sizes(), v.options()), slot = slots.contiguous();
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.kv_state = state.kv.mutable_data_ptr<float>();
  launch.arguments.k_state = state.k.mutable_data_ptr<float>();
  launch.arguments.slot = slot.const_data_ptr<int64_t>();
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), q);
  require_ok(table.forward(launch.arguments, scratch.mutable_data_ptr()));
  return y;
}

kernels::TaylorAttention taylor_step_arguments(const Tensor& q, const Tensor& k, const Tensor& v, const TaylorState& state,
                                               const Tensor& slots, const Tensor& decay, const Tensor& y) {
  kernels::TaylorAttention to = arguments_of(q, k, v, decay);
  to.y = y.mutable_data_ptr();
  to.kv_state = static_cast<float*>(state.kv.mutable_data_ptr());
  to.k_state = static_cast<float*>(state.k.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(slots.const_data_ptr());
  return to;
}

TaylorStepLaunch prepare_taylor_step(const Tensor& q, const Tensor& k, const Tensor& v, const TaylorState& state, const Tensor& slots,
                                     const OptionalTensor& decay) {
  TaylorStepLaunch launch{prepare(q, k, v, decay), slots.contiguous(), at::empty(v.sizes(), v.options())};
  launch.arguments = taylor_step_arguments(launch.q, launch.k, launch.v, state, launch.slots, launch.decay, launch.y);
  return launch;
}

Tensor taylor_attention_step_with(const TaylorAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const TaylorState& state, const Tensor& slots, const OptionalTensor& decay, double scale) {
  if (!uses_kernel(kStep, q, v.size(-1) <= table.step_head_dim)) return step_reference(q, k, v, state.kv, state.k, slots, decay, scale);
  check_taylor_attention_step(kStep, q, k, v, state.kv, state.k, slots, decay);
  const double apart = table.step_scales ? 1 : scale;
  TaylorStepLaunch launch = prepare_taylor_step(scaled(q, apart), scaled(k, apart), v, state, slots, decay);
  if (table.step_scales) launch.arguments.scale = static_cast<float>(scale);
  require_ok(table.step(launch.arguments));
  return launch.y;
}

namespace {

const TaylorAttentionKernels kCpu{kernels::cpu::taylor_attention_scratch, kernels::cpu::taylor_attention_forward,
                                  kernels::cpu::taylor_attention_backward_scratch, kernels::cpu::taylor_attention_backward,
                                  kernels::cpu::taylor_attention_step};

Forward forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                    const OptionalTensor& initial_k_state, const OptionalTensor& decay) {
  return taylor_attention_forward_with(kCpu, q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
}

Gradients backward_cpu(const Tensor& grad_y, const OptionalTensor& grad_kv_state, const OptionalTensor& grad_k_state, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                       const OptionalTensor& initial_k_state, const OptionalTensor& decay, const Tensor& y, const Tensor& denominator) {
  return taylor_attention_backward_with(kCpu, grad_y, grad_kv_state, grad_k_state, q, k, v, cu_seqlens, initial_kv_state, initial_k_state,
                                        decay, y, denominator);
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, const Tensor& slots,
                const OptionalTensor& decay, double scale) {
  return taylor_attention_step_with(kCpu, q, k, v, {kv_state, k_state}, slots, decay, scale);
}

Tensor prefill_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor kv_state, Tensor k_state,
                   const Tensor& slots, const OptionalTensor& decay) {
  return taylor_attention_prefill_with(kCpu, q, k, v, cu_seqlens, {kv_state, k_state}, slots, decay);
}

Forward call_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                     const OptionalTensor& initial_k_state, const OptionalTensor& decay) {
  static const auto op = find_operator<decltype(call_forward)>("based::taylor_attention_forward");
  return op.call(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
}

struct TaylorAttentionFunction : torch::autograd::Function<TaylorAttentionFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                           const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state, const OptionalTensor& decay) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, kv_state, k_state, denominator] = call_forward(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
    context->save_for_backward({q, k, v, cu_seqlens, value_or_undefined(initial_kv_state), value_or_undefined(initial_k_state),
                                value_or_undefined(decay), y, denominator});
    context->set_materialize_grads(false);
    return {y, kv_state, k_state};
  }

  static Variables backward(Context* context, const Variables& grads) {
    static const auto op = find_operator<decltype(backward_reference)>("based::taylor_attention_backward");
    const Variables saved = context->get_saved_variables();
    const Tensor grad_y = grads[0].defined() ? grads[0] : at::zeros_like(saved[7]);
    const auto [q, k, v, kv, sum_k] = op.call(grad_y, if_defined(grads[1]), if_defined(grads[2]), saved[0], saved[1], saved[2], saved[3],
                                              if_defined(saved[4]), if_defined(saved[5]), if_defined(saved[6]), saved[7], saved[8]);
    return {q, k, v, Tensor(), kv, sum_k, Tensor()};
  }
};

std::tuple<Tensor, Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                             const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state,
                                             const OptionalTensor& decay) {
  const auto [y, kv_state, k_state, denominator] = call_forward(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
  return {y, kv_state, k_state};
}

std::tuple<Tensor, Tensor, Tensor> attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                      const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state,
                                                      const OptionalTensor& decay) {
  if (!wants_gradient({q, k, v, value_or_undefined(initial_kv_state), value_or_undefined(initial_k_state)})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return attention(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
  }
  if (!has_kernel(q) && !q.is_meta()) {  // ATen's own autograd
    const TaylorForward out = taylor_attention_chunked({q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay});
    return {out.y, out.kv_state, out.k_state};
  }
  const auto out = TaylorAttentionFunction::apply(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
  return {out[0], out[1], out[2]};
}

Tensor prefill_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor kv_state, Tensor k_state,
                        const Tensor& slots, const OptionalTensor& decay) {
  require_no_gradient(kPrefill, {q, k, v, kv_state, k_state});
  static const auto op = find_operator<decltype(prefill_reference)>("based::taylor_attention_prefill");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(q, k, v, cu_seqlens, kv_state, k_state, slots, decay);
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, const Tensor& slots,
                     const OptionalTensor& decay, double scale) {
  require_no_gradient(kStep, {q, k, v, kv_state, k_state});
  static const auto op = find_operator<decltype(step_reference)>("based::taylor_attention_step");
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(q, k, v, kv_state, k_state, slots, decay, scale);
}

}  // namespace

void check_taylor_attention(const char* op, const TaylorArguments& in) {
  check_qkv(op, in.q, in.k, in.v);
  require_shape(op, "cu_seqlens", in.cu_seqlens, {-1});
  require_type(op, "cu_seqlens", in.cu_seqlens, at::kLong);
  require(in.cu_seqlens.size(0) >= 1, op, "cu_seqlens must have one entry more than rows, got ", in.cu_seqlens.sizes());
  require(in.initial_kv_state.has_value() == in.initial_k_state.has_value(), op,
          "initial_kv_state and initial_k_state must be given together");
  if (in.initial_kv_state) check_state(op, *in.initial_kv_state, *in.initial_k_state, in.cu_seqlens.size(0) - 1, in.q, in.v);
  check_decay(op, in.decay, in.q);
}

void check_taylor_attention_step(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& kv_state,
                                 const Tensor& k_state, const Tensor& slots, const OptionalTensor& decay) {
  check_qkv(op, q, k, v);
  check_slots(op, q, v, kv_state, k_state, slots, q.size(0));
  check_decay(op, decay, q);
}

std::tuple<Tensor, TaylorState> taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                 const std::optional<TaylorState>& initial_state, const OptionalTensor& decay) {
  static const auto op = find_operator<decltype(attention)>("based::taylor_attention");
  OptionalTensor kv, sum_k;
  if (initial_state) kv = initial_state->kv, sum_k = initial_state->k;
  auto [y, kv_state, k_state] = op.call(q, k, v, cu_seqlens, kv, sum_k, decay);
  return {y, {kv_state, k_state}};
}

Tensor taylor_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, TaylorStateRef state,
                                const Tensor& slots, const OptionalTensor& decay) {
  if (at::GradMode::is_enabled()) {
    const TaylorState initial{state.kv.index_select(0, slots), state.k.index_select(0, slots)};
    const auto [y, last] = taylor_attention(q, k, v, cu_seqlens, initial, decay);
    write_rows(state.kv, slots, last.kv), write_rows(state.k, slots, last.k);
    return y;
  }
  static const auto op = find_operator<decltype(prefill_reference)>("based::taylor_attention_prefill");
  return op.call(q, k, v, cu_seqlens, state.kv, state.k, slots, decay);
}

Tensor taylor_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                             const OptionalTensor& decay, double scale) {
  static const auto op = find_operator<decltype(step_reference)>("based::taylor_attention_step");
  return op.call(q, k, v, state.kv, state.k, slots, decay, scale);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "taylor_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? initial_kv_state=None, Tensor? initial_k_state=None, "
      "Tensor? decay=None) -> (Tensor y, Tensor kv_state, Tensor k_state)");
  m.def(
      "taylor_attention_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? initial_kv_state=None, "
      "Tensor? initial_k_state=None, Tensor? decay=None) -> (Tensor y, Tensor kv_state, Tensor k_state, Tensor denominator)");
  m.def(
      "taylor_attention_backward(Tensor grad_y, Tensor? grad_kv_state, Tensor? grad_k_state, Tensor q, Tensor k, Tensor v, "
      "Tensor cu_seqlens, Tensor? initial_kv_state, Tensor? initial_k_state, Tensor? decay, Tensor y, Tensor denominator) -> "
      "(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_initial_kv_state, Tensor grad_initial_k_state)");
  m.def(
      "taylor_attention_prefill(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor slots, "
      "Tensor? decay=None) -> Tensor");
  m.def(
      "taylor_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor slots, "
      "Tensor? decay=None, float scale=1.0) -> Tensor");
  m.def("taylor_features(Tensor x) -> Tensor", taylor_features);
  m.def("taylor_attention_quadratic(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? decay=None) -> Tensor",
        taylor_attention_quadratic);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("taylor_attention", attention);
  m.impl("taylor_attention_forward", forward_reference);
  m.impl("taylor_attention_backward", backward_reference);
  m.impl("taylor_attention_prefill", prefill_reference);
  m.impl("taylor_attention_step", step_reference);
}

TORCH_LIBRARY_IMPL(based, CPU, m) {
  m.impl("taylor_attention_forward", forward_cpu);
  m.impl("taylor_attention_backward", backward_cpu);
  m.impl("taylor_attention_prefill", prefill_cpu);
  m.impl("taylor_attention_step", step_cpu);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("taylor_attention_forward", forward_meta);
  m.impl("taylor_attention_backward", backward_meta);
  m.impl("taylor_attention_prefill", prefill_meta);
  m.impl("taylor_attention_step", step_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("taylor_attention", attention_autograd);
  m.impl("taylor_attention_prefill", prefill_autograd);
  m.impl("taylor_attention_step", step_autograd);
}

}  // namespace
}  // namespace based::ops
