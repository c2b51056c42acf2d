// torch.ops.based: normalised linear attention over features.
#include "based/ops/linear_attention/linear_attention_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::LinearAttentionPairsLaunchers;
using kernels::LinearAttentionStepLaunchers;
using PairsForward = std::tuple<Tensor, Tensor>;            // y, denominator
using PairsGradients = std::tuple<Tensor, Tensor, Tensor>;  // gradients of q, k, v

struct Pairs {
  Tensor q, k, v, cu_seqlens;
  double eps;
};

void check(const char* op, const Pairs& in) {
  ops::check_linear_attention_inputs(op, in);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  check_row_starts(op, "cu_seqlens", in.cu_seqlens, in.q.size(0));
}

// A launch's arguments and the tensors that own their memory. `table` is null where the reference runs.
struct Launch {
  Pairs inputs;
  kernels::LinearAttention arguments;
  const LinearAttentionPairsLaunchers* table = nullptr;
};

Launch prepare(const char* op, const Pairs& in) {
  const auto* table = launchers_for<LinearAttentionPairsLaunchers>(op, in.q);
  if (table == nullptr) return {};
  Launch launch{{as_contiguous(in.q), as_contiguous(in.k), as_contiguous(in.v), as_contiguous(in.cu_seqlens), in.eps}, {}, nullptr};
  launch.arguments = ops::linear_attention_arguments(launch.inputs);
  launch.arguments.single_tf32 = uses_tf32();
  launch.table = launchers_for<LinearAttentionPairsLaunchers>(op, in.q, table->supports(launch.arguments));
  return launch;
}

PairsForward pairs_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps) {
  constexpr const char* kOp = "linear_attention_pairs_forward";
  const Pairs in{q, k, v, cu_seqlens, eps};
  check(kOp, in);
  Launch launch = prepare(kOp, in);
  if (launch.table == nullptr) return call_reference<PairsForward>(kOp, q, k, v, cu_seqlens, eps);
  const Tensor y = empty(sizes_of(v), v), denominator = empty({q.size(0), q.size(1)}, q);
  launch.arguments.y = written_data(y);
  launch.arguments.denominator = written<float>(denominator);
  require_ok(kOp, launch.table->forward(launch.arguments, queue_of(q)), q);
  return {y, denominator};
}

PairsGradients pairs_backward(const Tensor& grad_y, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps,
                              const Tensor& y, const Tensor& denominator) {
  constexpr const char* kOp = "linear_attention_pairs_backward";
  const Pairs in{q, k, v, cu_seqlens, eps};
  check(kOp, in);
  for (const auto& [name, tensor] : {std::pair{"grad_y", grad_y}, {"y", y}}) {
    require_like(kOp, name, tensor, q);
    require_shape(kOp, name, tensor, sizes_of(v));
  }
  const Launch launch = prepare(kOp, in);
  if (launch.table == nullptr) return call_reference<PairsGradients>(kOp, grad_y, q, k, v, cu_seqlens, eps, y, denominator);
  require_shape(kOp, "denominator", denominator, {q.size(0), q.size(1)});
  const Tensor cotangent = as_contiguous(grad_y), output = as_contiguous(y), divisor = as_contiguous(denominator);
  const Tensor grad_q = empty(sizes_of(q), q), grad_k = empty(sizes_of(k), k), grad_v = empty(sizes_of(v), v);
  kernels::LinearAttentionBackward to;
  to.forward = launch.arguments;
  to.forward.y = written_data(output), to.forward.denominator = written<float>(divisor);
  to.grad_y = data(cotangent);
  to.grad_q = written_data(grad_q), to.grad_k = written_data(grad_k), to.grad_v = written_data(grad_v);
  const Tensor scratch = scratch_memory(launch.table->backward_scratch(to), q);
  require_ok(kOp, launch.table->backward(to, written_data(scratch), queue_of(q)), q);
  return {grad_q, grad_k, grad_v};
}

struct Step {
  Tensor q, k, v, kv_state, k_state, slots;
  double eps;
};

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& kv_state, const Tensor& k_state, const Tensor& slots,
            double eps) {
  constexpr const char* kOp = "linear_attention_step";
  const Step in{q, k, v, kv_state, k_state, slots, eps};
  ops::check_linear_attention_inputs(kOp, in);
  ops::check_linear_attention_state(kOp, in, kv_state, k_state, kv_state.dim() > 0 ? kv_state.size(0) : -1);
  require_state_slots(kOp, {kv_state, k_state}, slots, q.size(0));
  const auto* table = launchers_for<LinearAttentionStepLaunchers>(kOp, q);
  if (table == nullptr) return call_reference<Tensor>(kOp, q, k, v, kv_state, k_state, slots, eps);
  const Step launch{as_contiguous(q), as_contiguous(k), as_contiguous(v), kv_state, k_state, as_contiguous(slots), eps};
  const Tensor y = empty(sizes_of(v), v);
  kernels::LinearAttentionStep to = ops::linear_attention_step_arguments(launch);
  to.y = written_data(y);
  require_ok(kOp, table->step(to, queue_of(q)), q);
  return y;
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def(
      "linear_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor? initial_kv_state, Tensor? initial_k_state, float eps, "
      "bool final_state=True) -> (Tensor y, Tensor kv_state, Tensor k_state)");
  m.def("linear_attention_pairs(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, float eps) -> Tensor");
  m.def(
      "linear_attention_prefill(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor slots, "
      "float eps) -> Tensor");
  // Kernels.
  define_with_reference(
      m, "linear_attention_pairs_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, float eps) -> (Tensor y, Tensor denominator)");
  define_with_reference(m,
                        "linear_attention_pairs_backward(Tensor grad_y, Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, float eps, Tensor "
                        "y, Tensor denominator) -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)");
  define_with_reference(
      m, "linear_attention_step(Tensor q, Tensor k, Tensor v, Tensor(a!) kv_state, Tensor(b!) k_state, Tensor slots, float eps) -> Tensor");
}

// On a GPU a step is made of torch's operators, and on the CPU the products of pairs.
STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { implement<step>(m, "linear_attention_step"); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<pairs_forward>(m, "linear_attention_pairs_forward");
  implement<pairs_backward>(m, "linear_attention_pairs_backward");
}

}  // namespace
}  // namespace based::python
