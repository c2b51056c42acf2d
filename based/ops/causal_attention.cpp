#include "based/ops/causal_attention.h"

#include "based/kernels/causal_attention.h"
#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/recompute.h"
#include "based/ops/rows.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "causal_attention";
constexpr const char* kStep = "causal_attention_step";

}  // namespace

void check_attention_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  require(at::isFloatingType(q.scalar_type()), op, "q must be floating, got ", q.scalar_type());
  require_shape(op, "q", q, {-1, -1, -1});
  require(q.size(2) >= 1 && q.size(2) <= 256, op, "head_dim must be 1..256, got ", q.size(2));
  require_like(op, "k", k, q);
  require_like(op, "v", v, q);
  require_shape(op, "k", k, {-1, -1, q.size(2)});
  require_shape(op, "v", v, k.sizes());
  require(k.size(1) >= 1 && q.size(1) % k.size(1) == 0, op, "heads must be a multiple of kv_heads, got ", q.size(1), " and ", k.size(1));
}

void check_causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                            int64_t window) {
  check_attention_heads(kOp, q, k, v);
  require_type(kOp, "cu_seqlens_q", cu_seqlens_q, at::kLong);
  require_type(kOp, "cu_seqlens_k", cu_seqlens_k, at::kLong);
  require_shape(kOp, "cu_seqlens_q", cu_seqlens_q, {-1});
  require(cu_seqlens_q.size(0) >= 1, kOp, "cu_seqlens_q must have one entry more than rows, got ", cu_seqlens_q.sizes());
  require_shape(kOp, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_q.sizes());
  require(window >= 0, kOp, "window must be at least 0, got ", window);
}

namespace {

struct Starts {
  std::vector<int64_t> q, k;
};

Starts checked_starts(const Tensor& q, const Tensor& k, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k) {
  Starts starts{row_starts(kOp, "cu_seqlens_q", cu_seqlens_q, q.size(0)), row_starts(kOp, "cu_seqlens_k", cu_seqlens_k, k.size(0))};
  for (size_t row = 0; row + 1 < starts.q.size(); ++row) {
    const int64_t queries = starts.q[row + 1] - starts.q[row], keys = starts.k[row + 1] - starts.k[row];
    require(keys >= queries, kOp, "a row must have at least as many keys as queries, got ", keys, " and ", queries, " in row ", row);
  }
  return starts;
}

struct Attended {
  Tensor y, log_sum_exp;  // [rows, kv_heads, group, queries, head_dim], [rows, kv_heads, group, queries]
};

// Queries in blocks, so that with a window the scores of far keys are never made. q [rows, kv_heads, group, queries, head_dim],
// k and v [rows, kv_heads, 1, keys, head_dim].
Attended attend(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window, double scale) {
  constexpr int64_t kBlock = 256;
  const int64_t queries = q.size(3), keys = k.size(3), before = keys - queries;
  std::vector<Tensor> y, log_sum_exp;
  for (int64_t begin = 0; begin < queries; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, queries);
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, begin + before - window + 1), last = end + before;
    const Tensor scores = at::matmul(q.slice(3, begin, end), k.slice(3, first, last).transpose(-1, -2)) * scale;
    const auto positions = [&](int64_t from, int64_t to) { return at::arange(from, to, q.options().dtype(at::kLong)); };
    const Tensor distance = positions(begin + before, end + before).unsqueeze(1) - positions(first, last);
    const Tensor hidden = window == 0 ? distance < 0 : (distance < 0).logical_or(distance >= window);
    const Tensor masked = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    y.push_back(at::matmul(masked.softmax(-1), v.slice(3, first, last)));
    log_sum_exp.push_back(masked.logsumexp(-1));
  }
  if (y.empty()) return {at::zeros_like(q), at::zeros(q.sizes().slice(0, 4), q.options())};
  return {at::cat(y, 3), at::cat(log_sum_exp, 3)};
}

using Forward = std::tuple<Tensor, Tensor>;            // y, log_sum_exp
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

Forward forward_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                          int64_t window, double scale) {
  check_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window);
  const Starts starts = checked_starts(q, k, cu_seqlens_q, cu_seqlens_k);
  const at::ScalarType type = sum_type(q);
  const int64_t heads = q.size(1), kv_heads = k.size(1), head_dim = q.size(2);
  std::vector<Tensor> y, log_sum_exp;
  for (const Run& run : equal_runs(starts.q, starts.k)) {
    const Tensor queries = tokens_of(q, run).to(type).transpose(1, 2).reshape({run.rows, kv_heads, heads / kv_heads, run.length, head_dim});
    const Tensor keys = other_tokens_of(k, run).to(type).transpose(1, 2).unsqueeze(2);
    const Tensor values = other_tokens_of(v, run).to(type).transpose(1, 2).unsqueeze(2);
    const Attended out = attend(queries, keys, values, window, scale);
    const auto tokens_first = [&](const Tensor& t, at::IntArrayRef sizes) { return t.flatten(1, 2).transpose(1, 2).reshape(sizes); };
    y.push_back(tokens_first(out.y, {run.rows * run.length, heads, head_dim}));
    log_sum_exp.push_back(tokens_first(out.log_sum_exp, {run.rows * run.length, heads}));
  }
  return {join(y, q.sizes(), q.options()).to(q.scalar_type()), join(log_sum_exp, {q.size(0), heads}, q.options().dtype(type))};
}

Forward forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                     int64_t window, double) {
  check_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window);
  return {at::empty(q.sizes(), q.options()), at::empty({q.size(0), q.size(1)}, q.options().dtype(sum_type(q)))};
}

Gradients backward_reference(const Tensor& grad_y, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                             const Tensor& cu_seqlens_k, int64_t window, double scale, const Tensor&, const Tensor&) {
  const auto function = [&](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{std::get<0>(forward_reference(in[0], in[1], in[2], cu_seqlens_q, cu_seqlens_k, window, scale))};
  };
  const std::vector<Tensor> g = gradients_by_autograd(function, {q, k, v}, {grad_y});
  return {g[0], g[1], g[2]};
}

Gradients backward_meta(const Tensor&, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&, const Tensor&, int64_t, double,
                        const Tensor&, const Tensor&) {
  return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
}

void check_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_ring, const Tensor& v_ring, const Tensor& positions,
                const Tensor& slots) {
  check_attention_heads(kStep, q, k, v);
  require_shape(kStep, "k", k, {q.size(0), -1, -1});
  require_shape(kStep, "k_ring", k_ring, {-1, -1, k.size(1), k.size(2)});
  require(k_ring.size(1) >= 1, kStep, "k_ring must have room for a key, got ", k_ring.sizes());
  require_shape(kStep, "v_ring", v_ring, k_ring.sizes());
  require(at::isFloatingType(k_ring.scalar_type()), kStep, "k_ring must be floating, got ", k_ring.scalar_type());
  require_type(kStep, "v_ring", v_ring, k_ring.scalar_type());
  require_shape(kStep, "positions", positions, {q.size(0)});
  require_type(kStep, "positions", positions, at::kLong);
  require(k_ring.is_contiguous() && v_ring.is_contiguous(), kStep, "the state must be contiguous");
  require_slots(kStep, slots, q.size(0), k_ring.size(0));
}

Tensor step_reference(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring, const Tensor& positions,
                      const Tensor& slots, double scale) {
  check_step(q, k, v, k_ring, v_ring, positions, slots);
  const at::ScalarType type = sum_type(q);
  const int64_t capacity = k_ring.size(1), kv_heads = k.size(1), group = q.size(1) / kv_heads;
  Tensor y = at::empty(q.sizes(), q.options());
  // Row by row, and sums by elementwise operators: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < q.size(0); ++row) {
    const int64_t slot = slots[row].item<int64_t>(), written = positions[row].item<int64_t>();
    k_ring[slot][written % capacity].copy_(k[row]);
    v_ring[slot][written % capacity].copy_(v[row]);
    const int64_t first = std::max<int64_t>(0, written + 1 - capacity);
    const Tensor seen = at::arange(first, written + 1, positions.options()).remainder(capacity);
    const Tensor keys = k_ring[slot].index_select(0, seen).to(type).unsqueeze(2);    // [keys, kv_heads, 1, head_dim]
    const Tensor values = v_ring[slot].index_select(0, seen).to(type).unsqueeze(2);  // likewise
    const Tensor query = q[row].to(type).reshape({kv_heads, group, -1});
    const Tensor weights = ((query * keys).sum(-1) * scale).softmax(0);  // [keys, kv_heads, group]
    y[row].copy_((weights.unsqueeze(-1) * values).sum(0).reshape(q[row].sizes()));
  }
  return y;
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring, const Tensor& positions,
                 const Tensor& slots, double) {
  check_step(q, k, v, k_ring, v_ring, positions, slots);
  return at::empty(q.sizes(), q.options());
}

}  // namespace

CausalAttentionLaunch prepare_causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                                               const Tensor& cu_seqlens_k, int64_t window, double scale) {
  CausalAttentionLaunch launch{with_packed_heads(q),      with_packed_heads(k),      with_packed_heads(v),
                               cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous(), {}};
  kernels::CausalAttention& to = launch.arguments;
  to.q = launch.q.const_data_ptr();
  to.k = launch.k.const_data_ptr();
  to.v = launch.v.const_data_ptr();
  to.q_start = launch.q_starts.const_data_ptr<int64_t>();
  to.k_start = launch.k_starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens_q.size(0) - 1;
  to.q_tokens = q.size(0), to.k_tokens = k.size(0);
  to.q_stride = launch.q.stride(0), to.k_stride = launch.k.stride(0), to.v_stride = launch.v.stride(0);
  to.window = window;
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.scale = static_cast<float>(scale);
  to.dtype = kernel_dtype(q);
  return launch;
}

Forward causal_attention_forward_with(const CausalAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window, double scale) {
  if (!uses_kernel(kOp, q, table.forward != nullptr)) return forward_reference(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  check_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window);
  if (cu_seqlens_q.is_cpu()) checked_starts(q, k, cu_seqlens_q, cu_seqlens_k);
  CausalAttentionLaunch launch = prepare_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  const Tensor y = at::empty(q.sizes(), q.options()), log_sum_exp = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  launch.arguments.y = y.mutable_data_ptr();
  launch.arguments.log_sum_exp = log_sum_exp.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), q);
  require_ok(table.forward(launch.arguments, scratch.mutable_data_ptr()));
  return {y, log_sum_exp};
}

namespace {

// Of q, k and v that may be columns of one projection: side by side, its gradient is already there.
Gradients empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, bool joint) {
  if (!joint || q.size(0) != k.size(0))
    return {at::empty(q.sizes(), q.options()), at::empty(k.sizes(), k.options()), at::empty(v.sizes(), v.options())};
  const int64_t heads = q.size(1), kv_heads = k.size(1);
  const Tensor all = at::empty({q.size(0), heads + 2 * kv_heads, q.size(2)}, q.options());
  return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads), all.narrow(1, heads + kv_heads, kv_heads)};
}

}  // namespace

Gradients causal_attention_backward_with(const CausalAttentionKernels& table, const Tensor& grad_y, const Tensor& q, const Tensor& k,
                                         const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window,
                                         double scale, const Tensor& y, const Tensor& log_sum_exp) {
  if (!uses_kernel("causal_attention_backward", q, table.backward != nullptr))
    return backward_reference(grad_y, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, y, log_sum_exp);
  if (cu_seqlens_q.is_cpu()) checked_starts(q, k, cu_seqlens_q, cu_seqlens_k);
  CausalAttentionLaunch launch = prepare_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  const Tensor output = y.contiguous(), sums = log_sum_exp.contiguous(), cotangent = grad_y.contiguous();
  launch.arguments.y = output.data_ptr();
  launch.arguments.log_sum_exp = sums.data_ptr<float>();
  kernels::CausalAttentionBackward to;
  to.forward = launch.arguments;
  to.grad_y = cotangent.const_data_ptr();
  const auto [grad_q, grad_k, grad_v] = empty_gradients(q, k, v, table.joint_gradients);
  to.grad_q_stride = grad_q.stride(0), to.grad_k_stride = grad_k.stride(0), to.grad_v_stride = grad_v.stride(0);
  to.grad_q = grad_q.mutable_data_ptr();
  to.grad_k = grad_k.mutable_data_ptr();
  to.grad_v = grad_v.mutable_data_ptr();
  const Tensor scratch = scratch_memory(table.backward_scratch(to), q);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  return {grad_q, grad_k, grad_v};
}

kernels::CausalAttentionStep causal_attention_step_arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_ring,
                                                             const Tensor& v_ring, const Tensor& position, const Tensor& slots,
                                                             const Tensor& y) {
  kernels::CausalAttentionStep to;
  to.q = q.const_data_ptr();
  to.k = k.const_data_ptr();
  to.v = v.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.k_ring = k_ring.mutable_data_ptr();
  to.v_ring = v_ring.mutable_data_ptr();
  to.position = static_cast<const int64_t*>(position.const_data_ptr());
  to.slot = static_cast<const int64_t*>(slots.const_data_ptr());
  to.rows = q.size(0), to.capacity = k_ring.size(1);
  to.q_stride = q.stride(0), to.k_stride = k.stride(0), to.v_stride = v.stride(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.kv_heads = static_cast<int32_t>(k.size(1));
  to.head_dim = static_cast<int32_t>(q.size(2));
  to.dtype = kernel_dtype(q), to.ring_dtype = kernel_dtype(k_ring);
  return to;
}

CausalAttentionStepLaunch prepare_causal_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring,
                                                        const Tensor& positions, const Tensor& slots, double scale) {
  check_step(q, k, v, k_ring, v_ring, positions, slots);
  CausalAttentionStepLaunch launch{with_packed_heads(q),
                                   with_packed_heads(k),
                                   with_packed_heads(v),
                                   positions.contiguous(),
                                   slots.contiguous(),
                                   at::empty(q.sizes(), q.options()),
                                   {}};
  launch.arguments =
      causal_attention_step_arguments(launch.q, launch.k, launch.v, k_ring, v_ring, launch.positions, launch.slots, launch.y);
  launch.arguments.scale = static_cast<float>(scale);
  return launch;
}

Tensor causal_attention_step_with(const CausalAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring,
                                  Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale) {
  if (!uses_kernel(kStep, q, has_kernel(k_ring))) return step_reference(q, k, v, k_ring, v_ring, positions, slots, scale);
  const CausalAttentionStepLaunch launch = prepare_causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale);
  require_ok(table.step(launch.arguments));
  return launch.y;
}

namespace {

const CausalAttentionKernels kCpu{kernels::cpu::causal_attention_scratch, kernels::cpu::causal_attention_forward,
                                  kernels::cpu::causal_attention_backward_scratch, kernels::cpu::causal_attention_backward,
                                  kernels::cpu::causal_attention_step};

Forward forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                    int64_t window, double scale) {
  return causal_attention_forward_with(kCpu, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
}

Gradients backward_cpu(const Tensor& grad_y, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                       const Tensor& cu_seqlens_k, int64_t window, double scale, const Tensor& y, const Tensor& log_sum_exp) {
  return causal_attention_backward_with(kCpu, grad_y, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, y, log_sum_exp);
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring, const Tensor& positions,
                const Tensor& slots, double scale) {
  return causal_attention_step_with(kCpu, q, k, v, k_ring, v_ring, positions, slots, scale);
}

Forward call_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                     int64_t window, double scale) {
  static const auto op = find_operator<decltype(call_forward)>("based::causal_attention_forward");
  return op.call(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
}

struct CausalAttentionFunction : torch::autograd::Function<CausalAttentionFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                        const Tensor& cu_seqlens_k, int64_t window, double scale) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, log_sum_exp] = call_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
    context->save_for_backward({q, k, v, cu_seqlens_q, cu_seqlens_k, y, log_sum_exp});
    context->saved_data["window"] = window;
    context->saved_data["scale"] = scale;
    return y;
  }

  static Variables backward(Context* context, const Variables& grads) {
    static const auto op = find_operator<decltype(backward_reference)>("based::causal_attention_backward");
    const Variables saved = context->get_saved_variables();
    const auto [q, k, v] = op.call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], context->saved_data["window"].toInt(),
                                   context->saved_data["scale"].toDouble(), saved[5], saved[6]);
    return {q, k, v, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window,
                 double scale) {
  return std::get<0>(call_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale));
}

Tensor attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                          int64_t window, double scale) {
  if (!wants_gradient({q, k, v})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  }
  if (!has_kernel(q) && !q.is_meta()) return causal_attention_reference(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  return CausalAttentionFunction::apply(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
}

Tensor step_autograd(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring, const Tensor& positions,
                     const Tensor& slots, double scale) {
  require_no_gradient(kStep, {q, k, v, k_ring, v_ring});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale);
}

}  // namespace

Tensor causal_attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                  int64_t window, double scale) {
  return std::get<0>(forward_reference(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale));
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                        int64_t window, double scale) {
  static const auto op = find_operator<decltype(attention)>("based::causal_attention");
  return op.call(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
}

Tensor causal_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor& k_ring, Tensor& v_ring, const Tensor& positions,
                             const Tensor& slots, double scale) {
  static const auto op = find_operator<decltype(step_reference)>("based::causal_attention_step");
  return op.call(q, k, v, k_ring, v_ring, positions, slots, scale);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("causal_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, float scale) -> Tensor");
  m.def(
      "causal_attention_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, float scale) -> "
      "(Tensor y, Tensor log_sum_exp)");
  m.def(
      "causal_attention_backward(Tensor grad_y, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, "
      "float scale, Tensor y, Tensor log_sum_exp) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)");
  m.def(
      "causal_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) k_ring, Tensor(b!) v_ring, Tensor positions, Tensor slots, "
      "float scale) -> Tensor");
  m.def(
      "causal_attention_reference(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int window, float scale) -> "
      "Tensor",
      causal_attention_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("causal_attention", attention);
  m.impl("causal_attention_forward", forward_reference);
  m.impl("causal_attention_backward", backward_reference);
  m.impl("causal_attention_step", step_reference);
}

TORCH_LIBRARY_IMPL(based, CPU, m) {
  m.impl("causal_attention_forward", forward_cpu);
  m.impl("causal_attention_backward", backward_cpu);
  m.impl("causal_attention_step", step_cpu);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("causal_attention_forward", forward_meta);
  m.impl("causal_attention_backward", backward_meta);
  m.impl("causal_attention_step", step_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("causal_attention", attention_autograd);
  m.impl("causal_attention_step", step_autograd);
}

}  // namespace
}  // namespace based::ops
