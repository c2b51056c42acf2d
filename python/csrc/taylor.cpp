// torch.ops.based: second-order Taylor linear attention (paper, section 4.1).
#include "based/ops/taylor/taylor_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::TaylorAttentionLaunchers;
using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor>;            // y, kv_state, k_state, denominator
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // q, k, v, initial_kv_state, initial_k_state

void check_decay(const char* op, const OptionalTensor& decay, const Tensor& q) {
  ops::check_taylor_decay(op, decay, q, [](const Tensor& rates) { return as_contiguous(rates, ScalarType::Double); });
}

// States that are updated in place, for `rows` of their slots.
void check_slots(const char* op, const Tensor& kv_state, const Tensor& k_state, const Tensor& slots, int64_t rows, const Tensor& q,
                 const Tensor& v) {
  ops::check_taylor_state(op, kv_state, k_state, kv_state.dim() > 0 ? kv_state.size(0) : -1, q, v);
  require_state_slots(op, {kv_state, k_state}, slots, rows);
}

void check_rows(const char* op, const Tensor& q, const Tensor& cu_seqlens) {
  require_row_starts(op, "cu_seqlens", cu_seqlens);
  check_row_starts(op, "cu_seqlens", cu_seqlens, q.size(0));
}

// A launch's arguments and the tensors that own their memory.
struct Launch {
  Tensor q, k, v;
  OptionalTensor decay;
  Tensor starts;
  kernels::TaylorAttention arguments;
};

Launch prepare(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& decay, bool decay_denominator) {
  Launch launch{as_contiguous(q), as_contiguous(k), as_contiguous(v), {}, {}, {}};
  if (decay) launch.decay = as_contiguous(*decay, ScalarType::Float);
  kernels::TaylorAttention& to = launch.arguments;
  to.q = data(launch.q);
  to.k = data(launch.k);
  to.v = data(launch.v);
  to.decay = pointer<float>(launch.decay);
  to.decay_denominator = decay_denominator;
  to.tokens = to.rows = q.size(0);
  to.heads = static_cast<int32_t>(q.size(1));
  to.feature_dim = static_cast<int32_t>(q.size(2));
  to.head_dim = static_cast<int32_t>(v.size(2));
  to.dtype = kernel_dtype(q);
  to.single_tf32 = uses_tf32();
  return launch;
}

void run_forward(const char* op, const TaylorAttentionLaunchers& table, const Launch& launch) {
  const Tensor scratch = scratch_memory(table.forward_scratch(launch.arguments), launch.q);
  require_ok(op, table.forward(launch.arguments, written_data(scratch), queue_of(launch.q)), launch.q);
}

Forward forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                const OptionalTensor& initial_k_state, const OptionalTensor& decay, bool final_state, bool decay_denominator) {
  constexpr const char* kOp = "taylor_attention";
  ops::check_taylor_qkv(kOp, q, k, v);
  check_rows(kOp, q, cu_seqlens);
  require(initial_kv_state.has_value() == initial_k_state.has_value(), kOp, "initial_kv_state and initial_k_state must be given together");
  if (initial_kv_state) ops::check_taylor_state(kOp, *initial_kv_state, *initial_k_state, cu_seqlens.size(0) - 1, q, v);
  check_decay(kOp, decay, q);
  const auto* table = launchers_for<TaylorAttentionLaunchers>(kOp, q);
  if (table == nullptr)
    return call_reference<Forward>("taylor_attention_forward", q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay, final_state,
                                   decay_denominator);
  Launch launch = prepare(q, k, v, decay, decay_denominator);
  set_rows(launch, cu_seqlens);
  const bool states = final_state || initial_kv_state;
  const int64_t rows = states ? launch.arguments.rows : 0, features = kernels::packed_features(q.size(2));
  const auto start = [&](const OptionalTensor& initial, const Sizes& sizes) {
    return initial ? copy_of(*initial) : zeros(sizes, q, ScalarType::Float);
  };
  Tensor kv_state = start(initial_kv_state, {rows, q.size(1), features, v.size(2)});
  Tensor k_state = start(initial_k_state, {rows, q.size(1), features});
  const Tensor y = empty(sizes_of(v), v), denominator = empty({q.size(0), q.size(1)}, q, ScalarType::Float);
  launch.arguments.y = written_data(y);
  launch.arguments.denominator = written<float>(denominator);
  if (states) {
    launch.arguments.kv_state = written<float>(kv_state);
    launch.arguments.k_state = written<float>(k_state);
  }
  run_forward(kOp, *table, launch);
  if (!final_state && states) {
    kv_state = empty({0, q.size(1), features, v.size(2)}, q, ScalarType::Float);
    k_state = empty({0, q.size(1), features}, q, ScalarType::Float);
  }
  return {y, kv_state, k_state, denominator};
}

Gradients backward(const Tensor& grad_y, const OptionalTensor& grad_kv_state, const OptionalTensor& grad_k_state, const Tensor& q,
                   const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
                   const OptionalTensor& initial_k_state, const OptionalTensor& decay, bool final_state, bool decay_denominator,
                   const Tensor& y, const Tensor& denominator) {
  constexpr const char* kOp = "taylor_attention_backward";
  ops::check_taylor_qkv(kOp, q, k, v);
  check_rows(kOp, q, cu_seqlens);
  require_like(kOp, "grad_y", grad_y, q);
  require_shape(kOp, "grad_y", grad_y, sizes_of(v));
  require_shape(kOp, "y", y, sizes_of(v));
  const auto* table = launchers_for<TaylorAttentionLaunchers>(kOp, q);
  if (table == nullptr)
    return call_reference<Gradients>(kOp, grad_y, grad_kv_state, grad_k_state, q, k, v, cu_seqlens, initial_kv_state, initial_k_state,
                                     decay, final_state, decay_denominator, y, denominator);
  require_shape(kOp, "denominator", denominator, {q.size(0), q.size(1)});
  Launch launch = prepare(q, k, v, decay, decay_denominator);
  set_rows(launch, cu_seqlens);
  const int64_t rows = launch.arguments.rows, features = kernels::packed_features(q.size(2));
  const Sizes kv_sizes{rows, q.size(1), features, v.size(2)}, k_sizes{rows, q.size(1), features};
  const Tensor cotangent = as_contiguous(grad_y), output = as_contiguous(y), divisor = as_contiguous(denominator);
  kernels::TaylorAttentionBackward to;
  to.forward = launch.arguments;
  to.forward.y = written_data(output);
  to.forward.denominator = written<float>(divisor);
  to.grad_y = data(cotangent);
  const Tensor grad_q = empty(sizes_of(q), q), grad_k = empty(sizes_of(k), k), grad_v = empty(sizes_of(v), v);
  to.grad_q = written_data(grad_q);
  to.grad_k = written_data(grad_k);
  to.grad_v = written_data(grad_v);
  const OptionalTensor initial_kv = as_contiguous(initial_kv_state), initial_k = as_contiguous(initial_k_state);
  Tensor grad_initial_kv, grad_initial_k;
  if (initial_kv) {
    ops::check_taylor_state(kOp, *initial_kv, initial_k.value(), rows, q, v);
    grad_initial_kv = empty(kv_sizes, q, ScalarType::Float), grad_initial_k = empty(k_sizes, q, ScalarType::Float);
    to.initial_kv_state = pointer<float>(initial_kv);
    to.initial_k_state = pointer<float>(initial_k);
    to.grad_initial_kv_state = written<float>(grad_initial_kv);
    to.grad_initial_k_state = written<float>(grad_initial_k);
  }
  OptionalTensor grad_kv, grad_k_sum;
  if (final_state && (grad_kv_state || grad_k_state)) {
    grad_kv = grad_kv_state ? as_contiguous(*grad_kv_state) : zeros(kv_sizes, q, ScalarType::Float);
    grad_k_sum = grad_k_state ? as_contiguous(*grad_k_state) : zeros(k_sizes, q, ScalarType::Float);
    ops::check_taylor_state(kOp, *grad_kv, *grad_k_sum, rows, q, v);
    to.grad_kv_state = pointer<float>(grad_kv);
    to.grad_k_state = pointer<float>(grad_k_sum);
  }
  const Tensor scratch = scratch_memory(table->backward_scratch(to), q);
  require_ok(kOp, table->backward(to, written_data(scratch), queue_of(q)), q);
  return {grad_q, grad_k, grad_v, grad_initial_kv, grad_initial_k};
}

Tensor prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const Tensor& kv_state, const Tensor& k_state,
               const Tensor& slots, const OptionalTensor& decay, bool decay_denominator) {
  constexpr const char* kOp = "taylor_attention_prefill";
  ops::check_taylor_qkv(kOp, q, k, v);
  check_rows(kOp, q, cu_seqlens);
  check_slots(kOp, kv_state, k_state, slots, cu_seqlens.size(0) - 1, q, v);
  check_decay(kOp, decay, q);
  const auto* table = launchers_for<TaylorAttentionLaunchers>(kOp, q);
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, cu_seqlens, kv_state, k_state, slots, decay, decay_denominator);
  Launch launch = prepare(q, k, v, decay, decay_denominator);
  set_rows(launch, cu_seqlens);
  const Tensor y = empty(sizes_of(v), v), slot = as_contiguous(slots);
  launch.arguments.y = written_data(y);
  launch.arguments.kv_state = written<float>(kv_state);
  launch.arguments.k_state = written<float>(k_state);
  launch.arguments.slot = pointer<int64_t>(slot);
  run_forward(kOp, *table, launch);
  return y;
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& kv_state, const Tensor& k_state, const Tensor& slots,
            const OptionalTensor& decay, double scale, bool decay_denominator) {
  constexpr const char* kOp = "taylor_attention_step";
  ops::check_taylor_qkv(kOp, q, k, v);
  check_slots(kOp, kv_state, k_state, slots, q.size(0), q, v);
  check_decay(kOp, decay, q);
  const auto* of_device = kernels::launchers<TaylorAttentionLaunchers>(kernel_device(q));
  const auto* table = launchers_for<TaylorAttentionLaunchers>(kOp, q, of_device != nullptr && v.size(2) <= of_device->step_head_dim);
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, kv_state, k_state, slots, decay, scale, decay_denominator);
  const bool multiplies = scale != 1 && !table->step_scales;  // q and k are multiplied before the kernel
  Launch launch = prepare(multiplies ? scaled(q, scale) : q, multiplies ? scaled(k, scale) : k, v, decay, decay_denominator);
  if (table->step_scales) launch.arguments.scale = static_cast<float>(scale);
  const Tensor y = empty(sizes_of(v), v), slot = as_contiguous(slots);
  launch.arguments.y = written_data(y);
  launch.arguments.kv_state = written<float>(kv_state);
  launch.arguments.k_state = written<float>(k_state);
  launch.arguments.slot = pointer<int64_t>(slot);
  require_ok(kOp, table->step(launch.arguments, queue_of(q)), q);
  return y;
}

void register_kernels(Library& m) {
  implement<forward>(m, "taylor_attention_forward");
  implement<backward>(m, "taylor_attention_backward");
  implement<prefill>(m, "taylor_attention_prefill");
  implement<step>(m, "taylor_attention_step");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def(
      "taylor_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? initial_kv_state=None, Tensor? initial_k_state=None, "
      "Tensor? decay=None, bool final_state=True, bool decay_denominator=True) -> (Tensor y, Tensor kv_state, Tensor k_state)");
  m.def("taylor_features(Tensor x) -> Tensor");
  m.def(
      "taylor_attention_quadratic(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? decay=None, bool decay_denominator=True) -> "
      "Tensor");
  // Kernels.
  define_with_reference(
      m,
      "taylor_attention_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? initial_kv_state=None, Tensor? "
      "initial_k_state=None, Tensor? decay=None, bool final_state=True, bool decay_denominator=True) -> (Tensor y, Tensor kv_state, "
      "Tensor k_state, Tensor denominator)");
  define_with_reference(
      m,
      "taylor_attention_backward(Tensor grad_y, Tensor? grad_kv_state, Tensor? grad_k_state, Tensor q, Tensor k, Tensor v, Tensor "
      "cu_seqlens, Tensor? initial_kv_state, Tensor? initial_k_state, Tensor? decay, bool final_state, bool decay_denominator, Tensor y, "
      "Tensor denominator) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_initial_kv_state, Tensor grad_initial_k_state)");
  define_with_reference(
      m,
      "taylor_attention_prefill(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor slots, "
      "Tensor? decay=None, bool decay_denominator=True) -> Tensor");
  define_with_reference(
      m,
      "taylor_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor slots, Tensor? decay=None, "
      "float scale=1.0, bool decay_denominator=True) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
