#include "based/ops/taylor/taylor_attention.h"

#include "based/kernels/pair_attention/pair_attention.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"
#include "based/ops/framework/tokens_step.h"
#include "based/ops/linear/split_columns.h"

namespace based::ops {
namespace {

using TaylorAttentionResults = Result<TaylorAttentionForward>;
using TaylorAttentionGradients = Result<TaylorAttentionBackward>;
using kernels::TaylorAttentionLaunchers;

constexpr const char* kPrefill = "taylor_attention_prefill";
constexpr const char* kTaylorAttentionStep = "taylor_attention_step";
constexpr const char* kTaylorAttentionTokens = "taylor_attention_tokens";

// The state, or an empty one where the final state is not wanted.
Tensor kept(const TaylorAttention& in, const Tensor& state) { return in.final_state ? state : state.narrow(0, 0, 0); }

TaylorAttentionResults forward_reference(const TaylorAttention& in) {
  const TaylorForward out = taylor_attention_chunked(in);
  return {out.y, kept(in, out.kv_state).contiguous(), kept(in, out.k_state).contiguous(), out.denominator.contiguous()};
}

TaylorAttentionResults forward_meta(const TaylorAttentionForward& op) {
  const TaylorAttention& in = op.inputs;
  check_taylor_attention("taylor_attention", in);
  const int64_t rows = in.final_state ? in.cu_seqlens.size(0) - 1 : 0, heads = in.q.size(1),
                features = kernels::packed_features(in.q.size(2));
  const at::TensorOptions sums = in.q.options().dtype(sum_type(in.q));
  return {at::empty(in.v.sizes(), in.v.options()), at::empty({rows, heads, features, in.v.size(2)}, sums),
          at::empty({rows, heads, features}, sums), at::empty({in.q.size(0), heads}, sums)};
}

TaylorAttentionGradients backward_reference(const TaylorAttentionBackward& in) {
  const TaylorAttention& forward = in.forward;
  const auto function = [&](const std::vector<Tensor>& t) {
    const TaylorForward out =
        taylor_attention_chunked({t[0], t[1], t[2], forward.cu_seqlens, if_defined(t[3]), if_defined(t[4]), forward.decay,
                                  /*final_state=*/true, forward.decay_denominator});
    return std::vector<Tensor>{out.y, out.kv_state, out.k_state};
  };
  const std::vector<Tensor> g = gradients_by_autograd(
      function,
      {forward.q, forward.k, forward.v, value_or_undefined(forward.initial_kv_state), value_or_undefined(forward.initial_k_state)},
      {in.grad_y, forward.final_state ? value_or_undefined(in.grad_kv_state) : Tensor(),
       forward.final_state ? value_or_undefined(in.grad_k_state) : Tensor()});
  return {g[0], g[1], g[2], g[3], g[4]};
}

TaylorAttentionGradients backward_meta(const TaylorAttentionBackward& in) {
  const auto like = [](const OptionalTensor& t) { return t ? at::empty_like(*t) : Tensor(); };
  return {like(in.forward.q), like(in.forward.k), like(in.forward.v), like(in.forward.initial_kv_state), like(in.forward.initial_k_state)};
}

void check(const TaylorAttentionPrefill& in) { check_taylor_attention_prefill(kPrefill, in); }
void check(const TaylorAttentionStep& in) { check_taylor_attention_step(kTaylorAttentionStep, in); }
void check(const TaylorAttentionTokens& in) { check_taylor_attention_tokens(kTaylorAttentionTokens, in); }

template <class Op>
Tensor taylor_attention_like_v(const Op& in) {
  check(in);
  return at::empty(in.v.sizes(), in.v.options());
}

Tensor scaled(const Tensor& x, double scale) { return scale == 1 ? x : x * scale; }

Tensor step_reference(const TaylorAttentionStep& in) {
  check(in);
  return taylor_attention_step_reference(
      {scaled(in.q, in.scale), scaled(in.k, in.scale), in.v, in.kv_state, in.k_state, in.slots, in.decay, 1, in.decay_denominator});
}

Tensor prefill_reference(const TaylorAttentionPrefill& in) {
  check(in);
  const auto from_states = [&](const OptionalTensor& kv, const OptionalTensor& sum_k) {
    return forward_reference(
        TaylorAttention{in.q, in.k, in.v, in.cu_seqlens, kv, sum_k, in.decay, /*final_state=*/true, in.decay_denominator});
  };
  return prefill_slots(in.slots, from_states, in.kv_state, in.k_state);
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

// `as_columns`: the kernel reads q, k and v with their strides; else they are made contiguous.
TaylorLaunch prepare(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& decay, bool as_columns = false) {
  const auto laid = [as_columns](const Tensor& x) { return as_columns ? x : x.contiguous(); };
  TaylorLaunch launch{laid(q), laid(k), laid(v), Tensor(), decay ? decay->to(at::kFloat).contiguous() : Tensor(), {}};
  kernels::TaylorAttention& to = launch.arguments;
  to = arguments_of(launch.q, launch.k, launch.v, launch.decay);
  if (as_columns) to.qk_stride = static_cast<int32_t>(q.stride(0)), to.v_stride = static_cast<int32_t>(v.stride(0));
  return launch;
}

// `states`: an initial state is given or a final one is wanted, or their gradients.
TaylorLaunch prepare_rows(const TaylorAttentionLaunchers& table, const TaylorAttention& in, bool states) {
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
  launch.arguments.decay_denominator = in.decay_denominator;
  return launch;
}

// `as_columns`: columns of one tensor, as q, k and v are.
std::tuple<Tensor, Tensor, Tensor> empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, bool as_columns) {
  if (!as_columns) return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  const int64_t narrow = q.size(1) * q.size(2), wide = v.size(1) * v.size(2);
  const auto parts = at::empty({q.size(0), 2 * narrow + wide}, q.options()).split_with_sizes({narrow, narrow, wide}, 1);
  return {parts[0].view(q.sizes()), parts[1].view(k.sizes()), parts[2].view(v.sizes())};
}

// Every weight is at least 1/2, so a denominator is at least half of the number of tokens, decayed as it is. The state's first feature is
// that number.
[[maybe_unused]] bool denominators_are_bounded(const TaylorLaunch& launch, const Tensor& denominator,
                                               const OptionalTensor& initial_k_state) {
  const kernels::TaylorAttention& in = launch.arguments;
  for (int64_t row = 0; row < in.rows; ++row)
    for (int64_t head = 0; head < in.heads; ++head) {
      double count = initial_k_state ? (*initial_k_state)[row][head][0].item<double>() : 0;
      for (int64_t token = in.row_start[row]; token < in.row_start[row + 1]; ++token) {
        count = count * (in.decay && in.decay_denominator ? in.decay[head] : 1) + 1;
        if (!(denominator.const_data_ptr<float>()[token * in.heads + head] >= count / 2 * (1 - 1e-3))) return false;
      }
    }
  return true;
}

TaylorAttentionResults forward(const TaylorAttentionForward& op) {
  const TaylorAttention& in = op.inputs;
  const Tensor &q = in.q, &v = in.v;
  const TaylorAttentionLaunchers* table = launchers_for<TaylorAttentionLaunchers>("taylor_attention", q);
  if (table == nullptr) return forward_reference(in);
  check_taylor_attention("taylor_attention", in);
  const bool states = in.final_state || in.initial_kv_state;
  TaylorLaunch launch = prepare_rows(*table, in, states);
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
  const Tensor scratch = scratch_memory(table->forward_scratch(launch.arguments), q);
  require_ok(table->forward(launch.arguments, scratch.mutable_data_ptr(), queue_of(q)));
  BASED_DEBUG_ASSERT(!y.is_cpu() || denominators_are_bounded(launch, denominator, in.initial_k_state));
  return {y, kept(in, kv_state), kept(in, k_state), denominator};
}

TaylorAttentionGradients backward(const TaylorAttentionBackward& in) {
  const TaylorAttention& inputs = in.forward;
  const Tensor &q = inputs.q, &k = inputs.k, &v = inputs.v;
  const OptionalTensor &initial_kv_state = inputs.initial_kv_state, &initial_k_state = inputs.initial_k_state;
  const TaylorAttentionLaunchers* table = launchers_for<TaylorAttentionLaunchers>("taylor_attention_backward", q);
  if (table == nullptr) return backward_reference(in);
  const bool grad_state = inputs.final_state && (in.grad_kv_state || in.grad_k_state);
  TaylorLaunch launch = prepare_rows(*table, inputs, grad_state || initial_kv_state);
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
  const Tensor scratch = scratch_memory(table->backward_scratch(to), q);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(q)));
  return {grad_q, grad_k, grad_v, grad_initial_kv, grad_initial_k};
}

Tensor prefill(const TaylorAttentionPrefill& in) {
  const TaylorAttentionLaunchers* table = launchers_for<TaylorAttentionLaunchers>(kPrefill, in.q);
  if (table == nullptr) return prefill_reference(in);
  check(in);
  const OptionalTensor none;
  TaylorLaunch launch =
      prepare_rows(*table, {in.q, in.k, in.v, in.cu_seqlens, none, none, in.decay, /*final_state=*/true, in.decay_denominator}, true);
  const Tensor y = at::empty(in.v.sizes(), in.v.options()), slot = in.slots.contiguous();
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.kv_state = in.kv_state.mutable_data_ptr<float>();
  launch.arguments.k_state = in.k_state.mutable_data_ptr<float>();
  launch.arguments.slot = slot.const_data_ptr<int64_t>();
  const Tensor scratch = scratch_memory(table->forward_scratch(launch.arguments), in.q);
  require_ok(table->forward(launch.arguments, scratch.mutable_data_ptr(), queue_of(in.q)));
  return y;
}

}  // namespace

kernels::TaylorAttention taylor_step_arguments(const TaylorAttentionStep& in, const Tensor& y) {
  kernels::TaylorAttention to = arguments_of(in.q, in.k, in.v, value_or_undefined(in.decay));
  to.y = y.mutable_data_ptr();
  to.kv_state = static_cast<float*>(in.kv_state.mutable_data_ptr());
  to.k_state = static_cast<float*>(in.k_state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(in.slots.const_data_ptr());
  to.decay_denominator = in.decay_denominator;
  return to;
}

kernels::TaylorTokens taylor_tokens_arguments(const TaylorAttentionTokens& in, const Tensor& y) {
  kernels::TaylorTokens to{
      taylor_step_arguments({in.q, in.k, in.v, in.kv_state, in.k_state, in.slots, in.decay, 1, in.decay_denominator}, y),
      in.q.size(0) - in.tokens, kept_memory(in.kept_kv_state), kept_memory(in.kept_k_state)};
  to.step.rows = 1, to.step.tokens = in.tokens;
  to.step.scale = static_cast<float>(in.scale);
  return to;
}

TaylorStepLaunch prepare_taylor_step(const TaylorAttentionStep& in) {
  TaylorStepLaunch launch{prepare(in.q, in.k, in.v, in.decay), in.slots.contiguous(), at::empty(in.v.sizes(), in.v.options())};
  launch.arguments = taylor_step_arguments(
      {launch.q, launch.k, launch.v, in.kv_state, in.k_state, launch.slots, if_defined(launch.decay), 1, in.decay_denominator}, launch.y);
  return launch;
}

namespace {

Tensor step(const TaylorAttentionStep& in) {
  const auto& [q, k, v, kv_state, k_state, slots, decay, scale, decay_denominator] = in;
  const TaylorAttentionLaunchers* table = launchers_of<TaylorAttentionLaunchers>(q);
  if (!uses_kernel(kTaylorAttentionStep, q, table != nullptr && v.size(-1) <= table->step_head_dim)) return step_reference(in);
  check(in);
  const double factor = table->step_scales ? 1 : scale;  // q and k are multiplied by it before the kernel
  TaylorStepLaunch launch =
      prepare_taylor_step({scaled(q, factor), scaled(k, factor), v, kv_state, k_state, slots, decay, 1, decay_denominator});
  if (table->step_scales) launch.arguments.scale = static_cast<float>(scale);
  require_ok(table->step(launch.arguments, queue_of(q)));
  return launch.y;
}

Tensor tokens_reference(const TaylorAttentionTokens& in) {
  check(in);
  const auto step_row = [&](const auto& row) {
    return call(
        TaylorAttentionStep{row(in.q), row(in.k), row(in.v), in.kv_state, in.k_state, in.slots, in.decay, in.scale, in.decay_denominator});
  };
  return step_each_token(in.tokens, in.q.size(0), in.slots,
                         {{"kv_state", in.kv_state, in.kept_kv_state}, {"k_state", in.k_state, in.kept_k_state}}, step_row);
}

Tensor tokens(const TaylorAttentionTokens& in) {
  const TaylorAttentionLaunchers* table = launchers_of<TaylorAttentionLaunchers>(in.q);
  if (table == nullptr || table->step_tokens == nullptr || in.v.size(-1) > table->step_head_dim) return tokens_reference(in);
  check(in);
  const TaylorLaunch launch = prepare(in.q, in.k, in.v, in.decay);
  const OptionalTensor decay = if_defined(launch.decay);
  const Tensor slots = in.slots.contiguous(), y = at::empty(in.v.sizes(), in.v.options());
  const TaylorAttentionTokens laid{launch.q,         launch.k,        launch.v,  in.kv_state, in.k_state, slots,
                                   in.kept_kv_state, in.kept_k_state, in.tokens, decay,       in.scale,   in.decay_denominator};
  require_ok(table->step_tokens(taylor_tokens_arguments(laid, y), queue_of(in.q)));
  return y;
}

Result<TaylorAttention> attention(const TaylorAttention& in) {
  const auto [y, kv_state, k_state, denominator] = call(TaylorAttentionForward{in});
  return {y, kv_state, k_state};
}

// ATen differentiates it.
Result<TaylorAttention> attention_reference(const TaylorAttention& in) {
  const TaylorForward out = taylor_attention_chunked(in);
  return {out.y, kept(in, out.kv_state), kept(in, out.k_state)};
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<TaylorAttention>(m)
      .reference<attention>()
      .autograd<call_with_gradient<TaylorAttention, TaylorAttentionForward, TaylorAttentionBackward, attention_reference>>();
  define<TaylorAttentionForward>(m)
      .reference<on_inputs<TaylorAttentionForward, forward_reference>>()
      .meta<forward_meta>()
      .kernel<forward>();
  define<TaylorAttentionBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
  define<TaylorAttentionPrefill>(m)
      .reference<prefill_reference>()
      .meta<taylor_attention_like_v<TaylorAttentionPrefill>>()
      .kernel<prefill>()
      .without_gradient();
  define<TaylorAttentionStep>(m)
      .reference<step_reference>()
      .meta<taylor_attention_like_v<TaylorAttentionStep>>()
      .kernel<step>()
      .without_gradient();
  define<TaylorAttentionTokens>(m)
      .reference<tokens_reference>()
      .meta<taylor_attention_like_v<TaylorAttentionTokens>>()
      .kernel<tokens>()
      .without_gradient();
  m.def("taylor_features(Tensor x) -> Tensor", taylor_features);
  m.def(
      "taylor_attention_quadratic(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? decay=None, bool decay_denominator=True) -> "
      "Tensor",
      [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& decay, bool decay_denominator) {
        return taylor_attention_quadratic(q, k, v, cu_seqlens, {decay, decay_denominator});
      });
}

}  // namespace

std::tuple<Tensor, TaylorState> taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                 const std::optional<TaylorState>& initial_state, const TaylorDecay& decay) {
  OptionalTensor kv, sum_k;
  if (initial_state) kv = initial_state->kv, sum_k = initial_state->k;
  auto [y, kv_state, k_state] = call(TaylorAttention{q, k, v, cu_seqlens, kv, sum_k, decay.rates, /*final_state=*/true, decay.denominator});
  return {y, {kv_state, k_state}};
}

Tensor taylor_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                      const TaylorDecay& decay) {
  const OptionalTensor none;
  const auto attend = [&](const Tensor& columns) {
    return std::get<0>(call(TaylorAttention{q, k, columns, cu_seqlens, none, none, decay.rates, /*final_state=*/false, decay.denominator}));
  };
  const bool over_pairs = v.is_cuda() && v.scalar_type() == at::kFloat && v.dim() == 3 && !decay.rates;
  if (!over_pairs || v.size(2) <= kernels::kPairAttentionDim) return attend(v);
  std::vector<Tensor> parts;  // columns of v have the same weights
  for (const Tensor& columns : v.split(kernels::kPairAttentionDim, 2)) parts.push_back(attend(columns));
  return at::cat(parts, 2);
}

Tensor taylor_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, TaylorStateRef state,
                                const Tensor& slots, const TaylorDecay& decay) {
  if (!at::GradMode::is_enabled())
    return call(TaylorAttentionPrefill{q, k, v, cu_seqlens, state.kv, state.k, slots, decay.rates, decay.denominator});
  const auto from_states = [&](const OptionalTensor& kv, const OptionalTensor& sum_k) {
    return call(TaylorAttention{q, k, v, cu_seqlens, kv, sum_k, decay.rates, /*final_state=*/true, decay.denominator});
  };
  return prefill_slots_with_gradient(slots, from_states, state.kv, state.k);
}

Tensor taylor_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                             const TaylorDecay& decay, double scale) {
  return call(TaylorAttentionStep{q, k, v, state.kv, state.k, slots, decay.rates, scale, decay.denominator});
}

Tensor taylor_attention_tokens(const Tensor& q, const Tensor& k, const Tensor& v, int64_t tokens, TaylorStateRef state, const Tensor& slots,
                               const TaylorState& kept, const TaylorDecay& decay, double scale) {
  return call(TaylorAttentionTokens{q, k, v, state.kv, state.k, slots, kept.kv, kept.k, tokens, decay.rates, scale, decay.denominator});
}

}  // namespace based::ops
