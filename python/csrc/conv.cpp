// torch.ops.based: the gated short convolution, the core of BaseConv.
#include "based/kernels/conv/short_conv.h"

#include "stable.h"

namespace based::python {
namespace {

using kernels::ShortConvLaunchers;
using Forward = std::tuple<Tensor, Tensor>;                            // y, state
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // x, weight, bias, gate, initial_state

void check_layer(const char* op, const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate) {
  require_floating(op, "x", x);
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "weight", weight, x);
  require_shape(op, "weight", weight, {x.size(1), -1});
  require(weight.size(1) >= 1 && weight.size(1) <= kernels::kShortConvTaps, op, "taps must be 1..128, got ", weight.size(1));
  if (bias) {
    require_like(op, "bias", *bias, x);
    require_shape(op, "bias", *bias, {x.size(1)});
  }
  if (gate) {
    require_like(op, "gate", *gate, x);
    require_shape(op, "gate", *gate, x.sizes());
  }
}

void check_rows(const char* op, const Tensor& x, const Tensor& weight, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  require_row_starts(op, "cu_seqlens", cu_seqlens);
  check_row_starts(op, "cu_seqlens", cu_seqlens, x.size(0));
  if (!initial_state) return;
  require_type(op, "initial_state", *initial_state, sum_type(x));
  require_shape(op, "initial_state", *initial_state, {cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1});
}

// A state that is updated in place, for `rows` of its slots.
void check_slots(const char* op, const Tensor& x, const Tensor& weight, const Tensor& state, const Tensor& slots, int64_t rows) {
  require_type(op, "state", state, sum_type(x));
  require_shape(op, "state", state, {-1, x.size(1), weight.size(1) - 1});
  require_state_slots(op, {state}, slots, rows);
}

// A launch's arguments and the tensors that own their memory.
struct Launch {
  Tensor x, weight;
  OptionalTensor bias, gate;
  Tensor starts;
  kernels::ShortConv arguments;
};

// One token a row, as in a step; y and the state are not set.
Launch prepare(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu) {
  Launch launch{with_unit_columns(x), as_contiguous(weight), as_contiguous(bias), {}, {}, {}};
  if (gate) launch.gate = with_unit_columns(*gate);
  kernels::ShortConv& to = launch.arguments;
  to.x = data(launch.x);
  to.weight = data(launch.weight);
  to.bias = data(launch.bias);
  to.gate = data(launch.gate);
  to.x_stride = launch.x.stride(0);
  if (gate) to.gate_stride = launch.gate->stride(0);
  to.tokens = to.rows = x.size(0);
  to.channels = x.size(1);
  to.taps = static_cast<int32_t>(weight.size(1));
  to.silu = silu;
  to.dtype = kernel_dtype(x);
  return launch;
}

// y; `state` is updated in place, for each row at its slot; where `slots` is null, at the row's number.
Tensor convolve(const char* op, const ShortConvLaunchers& table, Launch& launch, const Tensor& state, const int64_t* slots) {
  const Tensor y = empty(sizes_of(launch.x), launch.x);
  kernels::ShortConv& to = launch.arguments;
  to.y = written_data(y);
  to.y_stride = y.stride(0);
  to.state = written<float>(state);
  to.slot = slots;
  require_ok(op, table.forward(to, queue_of(launch.x)), launch.x);
  return y;
}

Forward forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                const Tensor& cu_seqlens, const OptionalTensor& initial_state, bool adds_input) {
  constexpr const char* kOp = "short_conv";
  check_layer(kOp, x, weight, bias, gate);
  check_rows(kOp, x, weight, cu_seqlens, initial_state);
  const auto* table = launchers_for<ShortConvLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Forward>(kOp, x, weight, bias, gate, silu, cu_seqlens, initial_state, adds_input);
  const Tensor state =
      initial_state ? copy_of(*initial_state) : zeros({cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1}, x, ScalarType::Float);
  Launch launch = prepare(x, weight, bias, gate, silu);
  set_rows(launch, cu_seqlens);
  launch.arguments.adds_input = adds_input && table->adds_input;
  const Tensor y = convolve(kOp, *table, launch, state, nullptr);
  return {adds_input && !table->adds_input ? sum_of(y, x) : y, state};
}

Gradients backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& weight,
                   const OptionalTensor& bias, const OptionalTensor& gate, bool silu, const Tensor& cu_seqlens,
                   const OptionalTensor& initial_state, bool adds_input) {
  constexpr const char* kOp = "short_conv_backward";
  check_layer(kOp, x, weight, bias, gate);
  check_rows(kOp, x, weight, cu_seqlens, initial_state);
  require_like(kOp, "grad_y", grad_y, x);
  require_shape(kOp, "grad_y", grad_y, x.sizes());
  const auto* table = launchers_for<ShortConvLaunchers>(kOp, x);
  if (table == nullptr)
    return call_reference<Gradients>(kOp, grad_y, grad_state, x, weight, bias, gate, silu, cu_seqlens, initial_state, adds_input);
  Launch launch = prepare(x, weight, bias, gate, silu);
  set_rows(launch, cu_seqlens);
  launch.arguments.adds_input = adds_input && table->adds_input;
  const Tensor cotangent = as_contiguous(grad_y), grad_x = empty(sizes_of(x), x),
               grad_weight = empty(sizes_of(weight), x, ScalarType::Float);
  const OptionalTensor final_cotangent = as_contiguous(grad_state), initial = as_contiguous(initial_state);
  kernels::ShortConvBackward to;
  to.forward = launch.arguments;
  to.grad_y = data(cotangent);
  to.grad_x = written_data(grad_x);
  to.grad_x_stride = x.size(1);
  to.grad_weight = written<float>(grad_weight);
  if (final_cotangent) {
    require_shape(kOp, "grad_state", *final_cotangent, {cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1});
    to.grad_state = pointer<float>(final_cotangent);
  }
  Tensor grad_bias, grad_gate, grad_initial;
  if (bias) {
    grad_bias = empty(sizes_of(*bias), x, ScalarType::Float);
    to.grad_bias = written<float>(grad_bias);
  }
  if (gate) {
    grad_gate = empty(sizes_of(x), x);
    to.grad_gate = written_data(grad_gate);
    to.grad_gate_stride = x.size(1);
  }
  if (initial) {
    grad_initial = empty(sizes_of(*initial), x, ScalarType::Float);
    to.initial_state = pointer<float>(initial);
    to.grad_initial_state = written<float>(grad_initial);
  }
  const Tensor scratch = scratch_memory(table->backward_scratch(to), x);
  require_ok(kOp, table->backward(to, written_data(scratch), queue_of(x)), x);
  return {adds_input && !table->adds_input ? sum_of(grad_x, cotangent) : grad_x, as_contiguous(grad_weight, x.scalar_type()),
          bias ? as_contiguous(grad_bias, x.scalar_type()) : grad_bias, grad_gate, grad_initial};
}

Tensor prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
               const Tensor& cu_seqlens, const Tensor& state, const Tensor& slots) {
  constexpr const char* kOp = "short_conv_prefill";
  check_layer(kOp, x, weight, bias, gate);
  check_rows(kOp, x, weight, cu_seqlens, {});
  check_slots(kOp, x, weight, state, slots, cu_seqlens.size(0) - 1);
  const auto* table = launchers_for<ShortConvLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Tensor>(kOp, x, weight, bias, gate, silu, cu_seqlens, state, slots);
  Launch launch = prepare(x, weight, bias, gate, silu);
  set_rows(launch, cu_seqlens);
  const Tensor slot = as_contiguous(slots);
  return convolve(kOp, *table, launch, state, pointer<int64_t>(slot));
}

Tensor step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu, const Tensor& state,
            const Tensor& slots) {
  constexpr const char* kOp = "short_conv_step";
  check_layer(kOp, x, weight, bias, gate);
  check_slots(kOp, x, weight, state, slots, x.size(0));
  const auto* table = launchers_for<ShortConvLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Tensor>(kOp, x, weight, bias, gate, silu, state, slots);
  Launch launch = prepare(x, weight, bias, gate, silu);
  const Tensor slot = as_contiguous(slots), y = empty(sizes_of(x), x);
  kernels::ShortConv& to = launch.arguments;
  to.y = written_data(y);
  to.y_stride = x.size(1);
  to.state = written<float>(state);
  to.slot = pointer<int64_t>(slot);
  require_ok(kOp, table->step(to, queue_of(x)), x);
  return y;
}

void register_kernels(Library& m) {
  implement<forward>(m, "short_conv");
  implement<backward>(m, "short_conv_backward");
  implement<prefill>(m, "short_conv_prefill");
  implement<step>(m, "short_conv_step");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def(
      "projected_conv(Tensor x, Tensor in_weight, Tensor? in_bias, Tensor weight, Tensor? bias, Tensor cu_seqlens, Tensor? "
      "initial_state=None) -> (Tensor y, Tensor state)");
  m.def(
      "projected_conv_prefill(Tensor x, Tensor in_weight, Tensor? in_bias, Tensor weight, Tensor? bias, Tensor cu_seqlens, Tensor(a!) "
      "state, Tensor slots) -> Tensor");
  // Kernels.
  define_with_reference(m,
                        "short_conv(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor cu_seqlens, Tensor? "
                        "initial_state=None, bool adds_input=False) -> (Tensor y, Tensor state)");
  define_with_reference(
      m,
      "short_conv_backward(Tensor grad_y, Tensor? grad_state, Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor "
      "cu_seqlens, Tensor? initial_state=None, bool adds_input=False) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias, Tensor "
      "grad_gate, Tensor grad_initial_state)");
  define_with_reference(m,
                        "short_conv_prefill(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor cu_seqlens, "
                        "Tensor(a!) state, Tensor slots) -> Tensor");
  define_with_reference(m,
                        "short_conv_step(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor(a!) state, Tensor slots) "
                        "-> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
