#include "based/ops/taylor_attention.h"

#include "based/ops/operator_gradient.h"
#include "based/ops/recompute.h"
#include "based/ops/rows.h"
#include "based/ops/split_columns.h"
#include "based/ops/taylor_attention_reference.h"

namespace based::ops {
namespace {

using Forward = Result<TaylorAttentionForward>;
using Gradients = Result<TaylorAttentionBackward>;

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

// A state, or none of its rows.
Tensor kept(const TaylorAttention& in, const Tensor& state) { return in.final_state ? state : state.narrow(0, 0, 0); }

Forward forward_reference(const TaylorAttention& in) {
  const TaylorForward out = taylor_attention_chunked(in);
  return {out.y, kept(in, out.kv_state).contiguous(), kept(in, out.k_state).contiguous(), out.denominator.contiguous()};
}

Forward forward_meta(const TaylorAttentionForward& op) {
  const TaylorAttention& in = op.of;
  check_taylor_attention("taylor_attention", in);
  const int64_t rows = in.final_state ? in.cu_seqlens.size(0) - 1 : 0, heads = in.q.size(1),
                features = kernels::packed_features(in.q.size(2));
  const at::TensorOptions sums = in.q.options().dtype(sum_type(in.q));
  return {at::empty(in.v.sizes(), in.v.options()), at::empty({rows, heads, features, in.v.size(2)}, sums),
          at::empty({rows, heads, features}, sums), at::empty({in.q.size(0), heads}, sums)};
}

Gradients backward_reference(const TaylorAttentionBackward& in) {
  const TaylorAttention& forward = in.of;
  const auto function = [&](const std::vector<Tensor>& of) {
    const TaylorForward out =
        taylor_attention_chunked({of[0], of[1], of[2], forward.cu_seqlens, if_defined(of[3]), if_defined(of[4]), forward.decay});
    return std::vector<Tensor>{out.y, out.kv_state, out.k_state};
  };
  const std::vector<Tensor> g = gradients_by_autograd(
      function,
      {forward.q, forward.k, forward.v, value_or_undefined(forward.initial_kv_state), value_or_undefined(forward.initial_k_state)},
      {in.grad_y, forward.final_state ? value_or_undefined(in.grad_kv_state) : Tensor(),
       forward.final_state ? value_or_undefined(in.grad_k_state) : Tensor()});
  return {g[0], g[1], g[2], g[3], g[4]};
}

Gradients backward_meta(const TaylorAttentionBackward& in) {
  const auto like = [](const OptionalTensor& t) { return t ? at::empty_like(*t) : Tensor(); };
  return {like(in.of.q), like(in.of.k), like(in.of.v), like(in.of.initial_kv_state), like(in.of.initial_k_state)};
}

// States that are updated in place, for `rows` of their slots.
template <class Op>
void check_slots(const char* op, const Op& in, int64_t rows) {
  check_state(op, in.kv_state, in.k_state, in.kv_state.dim() ? in.kv_state.size(0) : -1, in.q, in.v);
  require(in.kv_state.is_contiguous() && in.k_state.is_contiguous(), op, "the state must be contiguous");
  require_slots(op, in.slots, rows, in.kv_state.size(0));
}

void check(const TaylorAttentionPrefill& in) {
  check_taylor_attention(kPrefill, {in.q, in.k, in.v, in.cu_seqlens, {}, {}, in.decay});
  check_slots(kPrefill, in, in.cu_seqlens.size(0) - 1);
}
void check(const TaylorAttentionStep& in) { check_taylor_attention_step(kStep, in); }

template <class Op>
Tensor like_v(const Op& in) {
  check(in);
  return at::empty(in.v.sizes(), in.v.options());
}

Tensor scaled(const Tensor& x, double scale) { return scale == 1 ? x : x * scale; }

Tensor step_reference(const TaylorAttentionStep& in) {
  check(in);
  return taylor_attention_step_reference(
      {scaled(in.q, in.scale), scaled(in.k, in.scale), in.v, in.kv_state, in.k_state, in.slots, in.decay, 1});
}

Tensor prefill_reference(const TaylorAttentionPrefill& in) {
  check(in);
  const auto [y, kv, sum_k, denominator] = forward_reference(
      {in.q, in.k, in.v, in.cu_seqlens, in.kv_state.index_select(0, in.slots), in.k_state.index_select(0, in.slots), in.decay});
  in.kv_state.index_copy_(0, in.slots, kv), in.k_state.index_copy_(0, in.slots, sum_k);
  return y;
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

// `states`: some are given or asked for.
TaylorLaunch prepare_rows(const TaylorAttentionKernels& table, const TaylorAttention& in, bool states) {
  const Tensor &q = in.q, &k = in.k, &v = in.v, &cu_seqlens = in.cu_seqlens;
  const OptionalTensor& decay = in.decay;
  check_row_starts("taylor_attention", "cu_seqlens", cu_seqlens, q.size(0));
  const int64_t rows = cu_seqlens.size(0) - 1;
  TaylorLaunch launch = prepare(q, k, v, decay, table.takes_strides != nullptr && are_columns(q, k, v));
  launch.arguments.rows = rows;
  if (launch.arguments.qk_stride != 0 && !table.takes_strides(launch.arguments, states)) launch = prepare(q, k, v, decay);
  launch.cu_seqlens = cu_seqlens.contiguous();
  launch.arguments.row_start = launch.cu_seqlens.const_data_ptr<int64_t>();
  launch.arguments.rows = rows;
  launch.arguments.single_tf32 = at::globalContext().allowTF32CuBLAS();
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

Forward taylor_attention_forward_with(const TaylorAttentionKernels& table, const TaylorAttention& in) {
  const Tensor &q = in.q, &v = in.v;
  if (!uses_kernel("taylor_attention", q)) return forward_reference(in);
  check_taylor_attention("taylor_attention", in);
  const bool states = in.final_state || in.initial_kv_state;
  TaylorLaunch launch = prepare_rows(table, in, states);
  const int64_t rows = states ? launch.arguments.rows : 0, heads = q.size(1), features = kernels::packed_features(q.size(2));
  const at::TensorOptions sums = q.options().dtype(at::kFloat);
  const auto start = [&](const OptionalTensor& initial, at::IntArrayRef sizes) {
    return initial ? initial->clone(at::MemoryFormat::Contiguous) : at::zeros(sizes, sums);
  };
  const Tensor kv_state = start(in.initial_kv_state, {rows, heads, features, v.size(2)});
  const Tensor k_state = start(in.initial_k_state, {rows, heads, features});
  const Tensor y = at::empty(v.sizes(), v.options()), denominator = at::empty({q.size(0), heads}, sums);
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.denominator = denominator.mutable_data_ptr<float>();
  if (states) {
    launch.arguments.kv_state = kv_state.mutable_data_ptr<float>();
    launch.arguments.k_state = k_state.mutable_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), q);
  require_ok(table.forward(launch.arguments, scratch.mutable_data_ptr()));
  BASED_DEBUG_ASSERT(!y.is_cpu() || denominators_are_bounded(launch, denominator, in.initial_k_state));
  return {y, kept(in, kv_state), kept(in, k_state), denominator};
}

Gradients taylor_attention_backward_with(const TaylorAttentionKernels& table, const TaylorAttentionBackward& in) {
  const Tensor &q = in.of.q, &k = in.of.k, &v = in.of.v;
  const OptionalTensor &initial_kv_state = in.of.initial_kv_state, &initial_k_state = in.of.initial_k_state;
  if (!uses_kernel("taylor_attention_backward", q)) return backward_reference(in);
  const bool grad_state = in.of.final_state && (in.grad_kv_state || in.grad_k_state);
  TaylorLaunch launch = prepare_rows(table, in.of, grad_state || initial_kv_state);
  const int64_t rows = launch.arguments.rows, heads = q.size(1), features = kernels::packed_features(q.size(2));
  const at::TensorOptions sums = q.options().dtype(at::kFloat);
  const Tensor cotangent = in.grad_y.contiguous(), output = in.y.contiguous(), divisor = in.denominator.contiguous();
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
  if (grad_state) {
    grad_kv = in.grad_kv_state ? in.grad_kv_state->contiguous() : at::zeros({rows, heads, features, v.size(2)}, sums);
    grad_k_sum = in.grad_k_state ? in.grad_k_state->contiguous() : at::zeros({rows, heads, features}, sums);
    to.grad_kv_state = grad_kv.const_data_ptr<float>();
    to.grad_k_state = grad_k_sum.const_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table.backward_scratch(to), q);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  return {grad_q, grad_k, grad_v, grad_initial_kv, grad_initial_k};
}

Tensor taylor_attention_prefill_with(const TaylorAttentionKernels& table, const TaylorAttentionPrefill& in) {
  if (!uses_kernel(kPrefill, in.q)) return prefill_reference(in);
  check(in);
  TaylorLaunch launch = prepare_rows(table, {in.q, in.k, in.v, in.cu_seqlens, {}, {}, in.decay}, true);
  const Tensor y = at::empty(in.v.sizes(), in.v.options()), slot = in.slots.contiguous();
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.kv_state = in.kv_state.mutable_data_ptr<float>();
  launch.arguments.k_state = in.k_state.mutable_data_ptr<float>();
  launch.arguments.slot = slot.const_data_ptr<int64_t>();
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), in.q);
  require_ok(table.forward(launch.arguments, scratch.mutable_data_ptr()));
  return y;
}

kernels::TaylorAttention taylor_step_arguments(const TaylorAttentionStep& in, const Tensor& y) {
  kernels::TaylorAttention to = arguments_of(in.q, in.k, in.v, value_or_undefined(in.decay));
  to.y = y.mutable_data_ptr();
  to.kv_state = static_cast<float*>(in.kv_state.mutable_data_ptr());
  to.k_state = static_cast<float*>(in.k_state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(in.slots.const_data_ptr());
  return to;
}

TaylorStepLaunch prepare_taylor_step(const TaylorAttentionStep& in) {
  TaylorStepLaunch launch{prepare(in.q, in.k, in.v, in.decay), in.slots.contiguous(), at::empty(in.v.sizes(), in.v.options())};
  launch.arguments =
      taylor_step_arguments({launch.q, launch.k, launch.v, in.kv_state, in.k_state, launch.slots, if_defined(launch.decay), 1}, launch.y);
  return launch;
}

Tensor taylor_attention_step_with(const TaylorAttentionKernels& table, const TaylorAttentionStep& in) {
  const auto& [q, k, v, kv_state, k_state, slots, decay, scale] = in;
  if (!uses_kernel(kStep, q, v.size(-1) <= table.step_head_dim)) return step_reference(in);
  check(in);
  const double apart = table.step_scales ? 1 : scale;
  TaylorStepLaunch launch = prepare_taylor_step({scaled(q, apart), scaled(k, apart), v, kv_state, k_state, slots, decay, 1});
  if (table.step_scales) launch.arguments.scale = static_cast<float>(scale);
  require_ok(table.step(launch.arguments));
  return launch.y;
}

namespace {

const TaylorAttentionKernels kCpu{kernels::cpu::taylor_attention_scratch, kernels::cpu::taylor_attention_forward,
                                  kernels::cpu::taylor_attention_backward_scratch, kernels::cpu::taylor_attention_backward,
                                  kernels::cpu::taylor_attention_step};

Result<TaylorAttention> attention(const TaylorAttention& in) {
  const auto [y, kv_state, k_state, denominator] = call(TaylorAttentionForward{in});
  return {y, kv_state, k_state};
}

// Differentiated by ATen itself.
Result<TaylorAttention> attention_reference(const TaylorAttention& in) {
  const TaylorForward out = taylor_attention_chunked(in);
  return {out.y, kept(in, out.kv_state), kept(in, out.k_state)};
}

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<TaylorAttention>(m)
      .reference<attention>()
      .autograd<call_with_gradient<TaylorAttention, TaylorAttentionForward, TaylorAttentionBackward, attention_reference>>();
  define<TaylorAttentionForward>(m)
      .reference<[](const TaylorAttentionForward& in) { return forward_reference(in.of); }>()
      .meta<forward_meta>()
      .cpu<[](const TaylorAttentionForward& in) { return taylor_attention_forward_with(kCpu, in.of); }>();
  define<TaylorAttentionBackward>(m)
      .reference<backward_reference>()
      .meta<backward_meta>()
      .cpu<[](const TaylorAttentionBackward& in) { return taylor_attention_backward_with(kCpu, in); }>();
  define<TaylorAttentionPrefill>(m)
      .reference<prefill_reference>()
      .meta<like_v<TaylorAttentionPrefill>>()
      .cpu<[](const TaylorAttentionPrefill& in) { return taylor_attention_prefill_with(kCpu, in); }>()
      .without_gradient();
  define<TaylorAttentionStep>(m)
      .reference<step_reference>()
      .meta<like_v<TaylorAttentionStep>>()
      .cpu<[](const TaylorAttentionStep& in) { return taylor_attention_step_with(kCpu, in); }>()
      .without_gradient();
  m.def("taylor_features(Tensor x) -> Tensor", taylor_features);
  m.def("taylor_attention_quadratic(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? decay=None) -> Tensor",
        taylor_attention_quadratic);
}

}  // namespace

void check_taylor_attention(const char* op, const TaylorAttention& in) {
  check_qkv(op, in.q, in.k, in.v);
  require_shape(op, "cu_seqlens", in.cu_seqlens, {-1});
  require_type(op, "cu_seqlens", in.cu_seqlens, at::kLong);
  require(in.cu_seqlens.size(0) >= 1, op, "cu_seqlens must have one entry more than rows, got ", in.cu_seqlens.sizes());
  require(in.initial_kv_state.has_value() == in.initial_k_state.has_value(), op,
          "initial_kv_state and initial_k_state must be given together");
  if (in.initial_kv_state) check_state(op, *in.initial_kv_state, *in.initial_k_state, in.cu_seqlens.size(0) - 1, in.q, in.v);
  check_decay(op, in.decay, in.q);
}

void check_taylor_attention_step(const char* op, const TaylorAttentionStep& in) {
  check_qkv(op, in.q, in.k, in.v);
  check_slots(op, in, in.q.size(0));
  check_decay(op, in.decay, in.q);
}

std::tuple<Tensor, TaylorState> taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                 const std::optional<TaylorState>& initial_state, const OptionalTensor& decay) {
  OptionalTensor kv, sum_k;
  if (initial_state) kv = initial_state->kv, sum_k = initial_state->k;
  auto [y, kv_state, k_state] = call(TaylorAttention{q, k, v, cu_seqlens, kv, sum_k, decay});
  return {y, {kv_state, k_state}};
}

Tensor taylor_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                      const OptionalTensor& decay) {
  const OptionalTensor none;
  const auto attend = [&](const Tensor& columns) {
    return std::get<0>(call(TaylorAttention{q, k, columns, cu_seqlens, none, none, decay, /*final_state=*/false}));
  };
  const bool over_pairs = v.is_cuda() && v.scalar_type() == at::kFloat && v.dim() == 3 && !decay;
  if (!over_pairs || v.size(2) <= kernels::kTaylorPairsHeadDim) return attend(v);
  std::vector<Tensor> parts;  // columns of v have the same weights
  for (const Tensor& columns : v.split(kernels::kTaylorPairsHeadDim, 2)) parts.push_back(attend(columns));
  return at::cat(parts, 2);
}

Tensor taylor_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, TaylorStateRef state,
                                const Tensor& slots, const OptionalTensor& decay) {
  if (!at::GradMode::is_enabled()) return call(TaylorAttentionPrefill{q, k, v, cu_seqlens, state.kv, state.k, slots, decay});
  const TaylorState initial{state.kv.index_select(0, slots), state.k.index_select(0, slots)};
  const auto [y, last] = taylor_attention(q, k, v, cu_seqlens, initial, decay);
  write_rows(state.kv, slots, last.kv), write_rows(state.k, slots, last.k);
  return y;
}

Tensor taylor_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                             const OptionalTensor& decay, double scale) {
  return call(TaylorAttentionStep{q, k, v, state.kv, state.k, slots, decay, scale});
}

}  // namespace based::ops
