#include "based/ops/short_conv.h"

#include "based/kernels/short_conv.h"
#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/recompute.h"
#include "based/ops/rows.h"
#include "based/ops/split_columns.h"

namespace based::ops {
namespace {

using Forward = std::tuple<Tensor, Tensor>;                            // y, final state
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // of x, weight, bias, gate, initial_state

constexpr const char* kOp = "short_conv";
constexpr const char* kPrefill = "short_conv_prefill";
constexpr const char* kStep = "short_conv_step";

void check_layer(const char* op, const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate) {
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "weight", weight, x);
  require_shape(op, "weight", weight, {x.size(1), -1});
  require(weight.size(1) >= 1 && weight.size(1) <= 128, op, "taps must be 1..128, got ", weight.size(1));
  if (bias) {
    require_like(op, "bias", *bias, x);
    require_shape(op, "bias", *bias, {x.size(1)});
  }
  if (gate) {
    require_like(op, "gate", *gate, x);
    require_shape(op, "gate", *gate, x.sizes());
  }
}

void check_rows(const char* op, const Tensor& cu_seqlens) {
  require_type(op, "cu_seqlens", cu_seqlens, at::kLong);
  require_shape(op, "cu_seqlens", cu_seqlens, {-1});
  require(cu_seqlens.size(0) >= 1, op, "cu_seqlens must have one entry more than rows, got ", cu_seqlens.sizes());
}

void check(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, const Tensor& cu_seqlens,
           const OptionalTensor& initial_state) {
  check_layer(kOp, x, weight, bias, gate);
  check_rows(kOp, cu_seqlens);
  if (!initial_state) return;
  require_type(kOp, "initial_state", *initial_state, sum_type(x));
  require_shape(kOp, "initial_state", *initial_state, {cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1});
}

// act(convolved + bias) ⊙ gate, of tensors that end in [channels].
Tensor finish(const Tensor& convolved, const Tensor& bias, const Tensor& gate, bool silu) {
  Tensor y = bias.defined() ? convolved + bias : convolved;
  if (silu) y = at::silu(y);
  return gate.defined() ? y * gate : y;
}

Forward forward_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                          const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  check(x, weight, bias, gate, cu_seqlens, initial_state);
  const std::vector<int64_t> starts = row_starts(kOp, "cu_seqlens", cu_seqlens, x.size(0));
  const at::ScalarType type = sum_type(x);
  const int64_t rows = cu_seqlens.size(0) - 1, channels = x.size(1), taps = weight.size(1);
  const Tensor inputs = x.to(type), filter = weight.to(type);
  const Tensor initial = initial_state ? *initial_state : at::zeros({rows, channels, taps - 1}, inputs.options());
  std::vector<Tensor> convolved, states;
  for (const Run& run : equal_runs(starts)) {
    const Tensor before = initial.narrow(0, run.first_row, run.rows).transpose(1, 2);
    const Tensor padded = at::cat({before, tokens_of(inputs, run)}, 1);  // [rows, taps − 1 + length, channels]
    Tensor sum = at::zeros({run.rows, run.length, channels}, inputs.options());
    for (int64_t tap = 0; tap < taps; ++tap) sum = sum + padded.narrow(1, tap, run.length) * filter.select(1, tap);
    convolved.push_back(sum.flatten(0, 1));
    states.push_back(padded.narrow(1, run.length, taps - 1).transpose(1, 2));
  }
  const Tensor bias_or_none = bias ? bias->to(type) : Tensor(), gate_or_none = gate ? gate->to(type) : Tensor();
  const Tensor y = finish(join(convolved, x.sizes(), inputs.options()), bias_or_none, gate_or_none, silu);
  return {y.to(x.scalar_type()).contiguous(), join(states, initial.sizes(), initial.options()).contiguous()};
}

Forward forward_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool,
                     const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  check(x, weight, bias, gate, cu_seqlens, initial_state);
  return {at::empty(x.sizes(), x.options()),
          at::empty({cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1}, x.options().dtype(sum_type(x)))};
}

Gradients backward_reference(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& gate, bool silu, const Tensor& cu_seqlens,
                             const OptionalTensor& initial_state) {
  const auto function = [&](const std::vector<Tensor>& in) {
    const auto [y, state] = forward_reference(in[0], in[1], if_defined(in[2]), if_defined(in[3]), silu, cu_seqlens, if_defined(in[4]));
    return std::vector<Tensor>{y, state};
  };
  const std::vector<Tensor> g =
      gradients_by_autograd(function, {x, weight, value_or_undefined(bias), value_or_undefined(gate), value_or_undefined(initial_state)},
                            {grad_y, value_or_undefined(grad_state)});
  return {g[0], g[1], g[2], g[3], g[4]};
}

Gradients backward_meta(const Tensor&, const OptionalTensor&, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& gate, bool, const Tensor&, const OptionalTensor& initial_state) {
  const auto like = [](const OptionalTensor& t) { return t ? at::empty(t->sizes(), t->options()) : Tensor(); };
  return {like(x), like(weight), like(bias), like(gate), like(initial_state)};
}

// A state that is updated in place, for `rows` of its slots.
void check_slots(const char* op, const Tensor& x, const Tensor& weight, const Tensor& state, const Tensor& slots, int64_t rows) {
  require_type(op, "state", state, sum_type(x));
  require_shape(op, "state", state, {-1, x.size(1), weight.size(1) - 1});
  require(state.is_contiguous(), op, "the state must be contiguous");
  require_slots(op, slots, rows, state.size(0));
}

void check_prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, const Tensor& cu_seqlens,
                   const Tensor& state, const Tensor& slots) {
  check_layer(kPrefill, x, weight, bias, gate);
  check_rows(kPrefill, cu_seqlens);
  check_slots(kPrefill, x, weight, state, slots, cu_seqlens.size(0) - 1);
}

Tensor prefill_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                         const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  check_prefill(x, weight, bias, gate, cu_seqlens, state, slots);
  const auto [y, last] = forward_reference(x, weight, bias, gate, silu, cu_seqlens, state.index_select(0, slots));
  state.index_copy_(0, slots, last);
  return y;
}

Tensor prefill_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool,
                    const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  check_prefill(x, weight, bias, gate, cu_seqlens, state, slots);
  return at::empty(x.sizes(), x.options());
}

void check_step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, const Tensor& state,
                const Tensor& slots) {
  check_layer(kStep, x, weight, bias, gate);
  check_slots(kStep, x, weight, state, slots, x.size(0));
}

Tensor step_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                      Tensor state, const Tensor& slots) {
  check_step(x, weight, bias, gate, state, slots);
  const at::ScalarType type = sum_type(x);
  const Tensor filter = weight.to(type), bias_or_none = bias ? bias->to(type) : Tensor();
  Tensor y = at::empty(x.sizes(), x.options());
  // Row by row: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < x.size(0); ++row) {
    Tensor slot = state[slots[row].item<int64_t>()];
    const Tensor inputs = at::cat({slot, x[row].to(type).unsqueeze(1)}, 1);  // [channels, taps]
    y[row].copy_(finish((inputs * filter).sum(1), bias_or_none, gate ? (*gate)[row].to(type) : Tensor(), silu));
    slot.copy_(inputs.narrow(1, 1, inputs.size(1) - 1));
  }
  return y;
}

Tensor step_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool, Tensor state,
                 const Tensor& slots) {
  check_step(x, weight, bias, gate, state, slots);
  return at::empty(x.sizes(), x.options());
}

// Memory of a launch, kept until it is over.
struct Launch {
  Tensor x, weight, bias, gate, in_bias;
  kernels::ShortConv arguments;
};

// Of x and gate; side by side where they are.
std::tuple<Tensor, Tensor> empty_gradients(const Tensor& x, const OptionalTensor& gate) {
  if (!gate) return {at::empty(x.sizes(), x.options()), Tensor()};
  if (!joined_columns({x, *gate})) return {at::empty(x.sizes(), x.options()), at::empty(gate->sizes(), gate->options())};
  const auto halves = at::empty({x.size(0), 2 * x.size(1)}, x.options()).split(x.size(1), 1);
  return {halves[0], halves[1]};
}

kernels::ShortConv layer_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& gate, bool silu) {
  kernels::ShortConv to;
  to.x = x.const_data_ptr();
  to.weight = weight.const_data_ptr();
  to.x_stride = x.stride(0);
  if (bias.defined()) to.bias = bias.const_data_ptr();
  if (gate.defined()) to.gate = gate.const_data_ptr(), to.gate_stride = gate.stride(0);
  to.tokens = to.rows = x.size(0);
  to.channels = x.size(1);
  to.taps = static_cast<int32_t>(weight.size(1));
  to.silu = silu;
  to.dtype = kernel_dtype(x);
  return to;
}

Launch prepare(const ShortConvLayer& layer) {
  const auto& [x, weight, bias, gate, silu, in_bias] = layer;
  Launch launch{with_unit_columns(x),
                weight.contiguous(),
                bias ? bias->contiguous() : Tensor(),
                gate ? with_unit_columns(*gate) : Tensor(),
                in_bias.defined() ? in_bias.contiguous() : Tensor(),
                {}};
  kernels::ShortConv& to = launch.arguments;
  to = layer_arguments(launch.x, launch.weight, launch.bias, launch.gate, silu);
  if (in_bias.defined()) {
    to.x_bias = launch.in_bias.const_data_ptr();
    to.gate_bias = static_cast<const char*>(to.x_bias) + to.channels * kernels::dtype_size(to.dtype);
  }
  return launch;
}

// y; `state` is updated in place: a row's is that of its slot, or where `slots` is null, of its number.
Tensor convolve(const ShortConvKernels& table, Launch launch, const Tensor& cu_seqlens, const Tensor& state, const int64_t* slots) {
  const Tensor& x = launch.x;
  check_row_starts(kOp, "cu_seqlens", cu_seqlens, x.size(0));
  const Tensor starts = cu_seqlens.contiguous(), y = at::empty(x.sizes(), x.options());
  kernels::ShortConv& to = launch.arguments;
  to.y = y.mutable_data_ptr();
  to.y_stride = y.stride(0);
  to.state = state.mutable_data_ptr<float>();
  to.slot = slots;
  to.row_start = starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens.size(0) - 1;
  require_ok(table.forward(to));
  return y;
}

}  // namespace

Forward short_conv_with(const ShortConvKernels& table, const ShortConvLayer& layer, const Tensor& cu_seqlens,
                        const OptionalTensor& initial_state) {
  const auto& [x, weight, bias, gate, silu, in_bias] = layer;
  if (!uses_kernel(kOp, x)) return forward_reference(x, weight, bias, gate, silu, cu_seqlens, initial_state);
  check(x, weight, bias, gate, cu_seqlens, initial_state);
  const Tensor state = initial_state ? initial_state->clone(at::MemoryFormat::Contiguous)
                                     : at::zeros({cu_seqlens.size(0) - 1, x.size(1), weight.size(1) - 1}, x.options().dtype(at::kFloat));
  return {convolve(table, prepare(layer), cu_seqlens, state, nullptr), state};
}

Tensor short_conv_prefill_with(const ShortConvKernels& table, const ShortConvLayer& layer, const Tensor& cu_seqlens, Tensor state,
                               const Tensor& slots) {
  const auto& [x, weight, bias, gate, silu, in_bias] = layer;
  if (!uses_kernel(kPrefill, x)) return prefill_reference(x, weight, bias, gate, silu, cu_seqlens, state, slots);
  check_prefill(x, weight, bias, gate, cu_seqlens, state, slots);
  const Tensor slot = slots.contiguous();
  return convolve(table, prepare(layer), cu_seqlens, state, slot.const_data_ptr<int64_t>());
}

Gradients short_conv_backward_with(const ShortConvKernels& table, const Tensor& grad_y, const OptionalTensor& grad_state,
                                   const ShortConvLayer& layer, const Tensor& cu_seqlens, const OptionalTensor& initial_state,
                                   Tensor* sums_of_gradients) {
  const auto& [x, weight, bias, gate, silu, in_bias] = layer;
  if (!uses_kernel("short_conv_backward", x))
    return backward_reference(grad_y, grad_state, x, weight, bias, gate, silu, cu_seqlens, initial_state);
  check_row_starts(kOp, "cu_seqlens", cu_seqlens, x.size(0));
  const Tensor starts = cu_seqlens.contiguous();
  Launch launch = prepare(layer);
  launch.arguments.row_start = starts.const_data_ptr<int64_t>();
  launch.arguments.rows = cu_seqlens.size(0) - 1;
  const at::TensorOptions sums = x.options().dtype(at::kFloat);
  const Tensor cotangent = grad_y.contiguous(), grad_weight = at::empty(weight.sizes(), sums);
  const Tensor final_cotangent = grad_state ? grad_state->contiguous() : Tensor();
  const Tensor initial = initial_state ? initial_state->contiguous() : Tensor();
  auto [grad_x, grad_gate] = empty_gradients(x, gate);
  Tensor grad_bias, grad_initial;
  kernels::ShortConvBackward to;
  to.forward = launch.arguments;
  to.grad_y = cotangent.const_data_ptr();
  to.grad_x = grad_x.mutable_data_ptr(), to.grad_x_stride = grad_x.stride(0);
  to.grad_weight = grad_weight.mutable_data_ptr<float>();
  if (grad_state) to.grad_state = final_cotangent.const_data_ptr<float>();
  if (bias) {
    grad_bias = at::empty(bias->sizes(), sums);
    to.grad_bias = grad_bias.mutable_data_ptr<float>();
  }
  if (gate) {
    to.grad_gate = grad_gate.mutable_data_ptr(), to.grad_gate_stride = grad_gate.stride(0);
  }
  if (initial_state) {
    grad_initial = at::empty(initial.sizes(), sums);
    to.initial_state = initial.const_data_ptr<float>();
    to.grad_initial_state = grad_initial.mutable_data_ptr<float>();
  }
  if (sums_of_gradients != nullptr && table.backward_sums != nullptr && table.backward_sums(to)) {
    *sums_of_gradients = at::empty({2 * x.size(1)}, sums);
    to.grad_sums = sums_of_gradients->mutable_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table.backward_scratch(to), x);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  return {grad_x, grad_weight.to(weight.scalar_type()), bias ? grad_bias.to(bias->scalar_type()) : Tensor(), grad_gate, grad_initial};
}

kernels::ShortConv short_conv_step_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& gate, bool silu,
                                             const Tensor& state, const Tensor& slots, const Tensor& y) {
  kernels::ShortConv to = layer_arguments(x, weight, bias, gate, silu);
  to.y = y.mutable_data_ptr();
  to.y_stride = y.stride(0);
  to.state = static_cast<float*>(state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(slots.const_data_ptr());
  return to;
}

Tensor short_conv_step_with(const ShortConvKernels& table, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                            const OptionalTensor& gate, bool silu, Tensor state, const Tensor& slots) {
  if (!uses_kernel(kStep, x)) return step_reference(x, weight, bias, gate, silu, state, slots);
  check_step(x, weight, bias, gate, state, slots);
  const Launch launch = prepare({x, weight, bias, gate, silu});
  const Tensor y = at::empty(x.sizes(), x.options());
  require_ok(table.step(short_conv_step_arguments(launch.x, launch.weight, launch.bias, launch.gate, silu, state, slots.contiguous(), y)));
  return y;
}

namespace {

const ShortConvKernels kCpu{kernels::cpu::short_conv_forward, [](const kernels::ShortConvBackward&) { return int64_t{0}; },
                            [](const kernels::ShortConvBackward& p, void*) { return kernels::cpu::short_conv_backward(p); },
                            kernels::cpu::short_conv_step};

Forward forward_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                    const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  return short_conv_with(kCpu, {x, weight, bias, gate, silu}, cu_seqlens, initial_state);
}

Gradients backward_cpu(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& weight,
                       const OptionalTensor& bias, const OptionalTensor& gate, bool silu, const Tensor& cu_seqlens,
                       const OptionalTensor& initial_state) {
  return short_conv_backward_with(kCpu, grad_y, grad_state, {x, weight, bias, gate, silu}, cu_seqlens, initial_state);
}

Tensor prefill_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                   const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  return short_conv_prefill_with(kCpu, {x, weight, bias, gate, silu}, cu_seqlens, state, slots);
}

Tensor step_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu, Tensor state,
                const Tensor& slots) {
  return short_conv_step_with(kCpu, x, weight, bias, gate, silu, state, slots);
}

struct ShortConvFunction : torch::autograd::Function<ShortConvFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables forward(Context* context, const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate,
                           bool silu, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, state] = short_conv(x, weight, bias, gate, silu, cu_seqlens, initial_state);
    context->save_for_backward(
        {x, weight, value_or_undefined(bias), value_or_undefined(gate), cu_seqlens, value_or_undefined(initial_state)});
    context->saved_data["silu"] = silu;
    context->set_materialize_grads(false);
    return {y, state};
  }

  static Variables backward(Context* context, const Variables& grads) {
    static const auto op = find_operator<decltype(backward_reference)>("based::short_conv_backward");
    const Variables saved = context->get_saved_variables();
    const Tensor grad_y = grads[0].defined() ? grads[0] : at::zeros_like(saved[0]);
    const auto [x, weight, bias, gate, initial_state] =
        op.call(grad_y, if_defined(grads[1]), saved[0], saved[1], if_defined(saved[2]), if_defined(saved[3]),
                context->saved_data["silu"].toBool(), saved[4], if_defined(saved[5]));
    return {x, weight, bias, gate, Tensor(), Tensor(), initial_state};
  }
};

Forward short_conv_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                            const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  if (!wants_gradient({x, weight, value_or_undefined(bias), value_or_undefined(gate), value_or_undefined(initial_state)})) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return short_conv(x, weight, bias, gate, silu, cu_seqlens, initial_state);
  }
  if (!has_kernel(x) && !x.is_meta()) return forward_reference(x, weight, bias, gate, silu, cu_seqlens, initial_state);
  const auto out = ShortConvFunction::apply(x, weight, bias, gate, silu, cu_seqlens, initial_state);
  return {out[0], out[1]};
}

Tensor prefill_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                        const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  require_no_gradient(kPrefill, {x, weight, value_or_undefined(bias), value_or_undefined(gate), state});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return short_conv_prefill_in_place(x, weight, bias, gate, silu, cu_seqlens, state, slots);
}

Tensor step_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu, Tensor state,
                     const Tensor& slots) {
  require_no_gradient(kStep, {x, weight, value_or_undefined(bias), value_or_undefined(gate), state});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return short_conv_step(x, weight, bias, gate, silu, state, slots);
}

}  // namespace

Forward short_conv_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                             const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  return forward_reference(x, weight, bias, gate, silu, cu_seqlens, initial_state);
}

Forward short_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                   const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  static const auto op = find_operator<decltype(forward_reference)>("based::short_conv");
  return op.call(x, weight, bias, gate, silu, cu_seqlens, initial_state);
}

Tensor short_conv_prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                          const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  if (!at::GradMode::is_enabled()) return short_conv_prefill_in_place(x, weight, bias, gate, silu, cu_seqlens, state, slots);
  const auto [y, last] = short_conv(x, weight, bias, gate, silu, cu_seqlens, state.index_select(0, slots));
  write_rows(state, slots, last);
  return y;
}

Tensor short_conv_prefill_in_place(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                                   const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  static const auto op = find_operator<decltype(prefill_reference)>("based::short_conv_prefill");
  return op.call(x, weight, bias, gate, silu, cu_seqlens, state, slots);
}

Tensor short_conv_step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                       Tensor& state, const Tensor& slots) {
  static const auto op = find_operator<decltype(step_reference)>("based::short_conv_step");
  return op.call(x, weight, bias, gate, silu, state, slots);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "short_conv(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor cu_seqlens, Tensor? initial_state=None) -> "
      "(Tensor y, Tensor state)");
  m.def(
      "short_conv_backward(Tensor grad_y, Tensor? grad_state, Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, "
      "Tensor cu_seqlens, Tensor? initial_state) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias, Tensor grad_gate, "
      "Tensor grad_initial_state)");
  m.def(
      "short_conv_prefill(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor cu_seqlens, Tensor(a!) state, "
      "Tensor slots) -> Tensor");
  m.def("short_conv_step(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor(a!) state, Tensor slots) -> Tensor");
  m.def(
      "short_conv_reference(Tensor x, Tensor weight, Tensor? bias, Tensor? gate, bool silu, Tensor cu_seqlens, "
      "Tensor? initial_state=None) -> (Tensor y, Tensor state)",
      short_conv_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  m.impl("short_conv", forward_reference);
  m.impl("short_conv_backward", backward_reference);
  m.impl("short_conv_prefill", prefill_reference);
  m.impl("short_conv_step", step_reference);
}

TORCH_LIBRARY_IMPL(based, CPU, m) {
  m.impl("short_conv", forward_cpu);
  m.impl("short_conv_backward", backward_cpu);
  m.impl("short_conv_prefill", prefill_cpu);
  m.impl("short_conv_step", step_cpu);
}

TORCH_LIBRARY_IMPL(based, Meta, m) {
  m.impl("short_conv", forward_meta);
  m.impl("short_conv_backward", backward_meta);
  m.impl("short_conv_prefill", prefill_meta);
  m.impl("short_conv_step", step_meta);
}

TORCH_LIBRARY_IMPL(based, Autograd, m) {
  m.impl("short_conv", short_conv_autograd);
  m.impl("short_conv_prefill", prefill_autograd);
  m.impl("short_conv_step", step_autograd);
}

}  // namespace
}  // namespace based::ops
