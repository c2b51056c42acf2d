#include "based/ops/conv/short_conv.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"
#include "based/ops/framework/tokens_step.h"
#include "based/ops/linear/split_columns.h"

namespace based::ops {
namespace {

using kernels::ShortConvLaunchers;

void check_layer(const char* op, const ShortConvLayer& in) {
  const Tensor& x = in.x;
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require_shape(op, "x", x, {-1, -1});
  require_like(op, "weight", in.weight, x);
  require_shape(op, "weight", in.weight, {x.size(1), -1});
  require(in.weight.size(1) >= 1 && in.weight.size(1) <= kernels::kShortConvTaps, op, "taps must be 1..128, got ", in.weight.size(1));
  if (in.bias) {
    require_like(op, "bias", *in.bias, x);
    require_shape(op, "bias", *in.bias, {x.size(1)});
  }
  if (in.gate) {
    require_like(op, "gate", *in.gate, x);
    require_shape(op, "gate", *in.gate, x.sizes());
  }
}

void check(const ShortConv& in) {
  constexpr const char* op = "short_conv";
  check_layer(op, in.layer);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  if (!in.initial_state) return;
  require_type(op, "initial_state", *in.initial_state, sum_type(in.layer.x));
  require_shape(op, "initial_state", *in.initial_state, {in.cu_seqlens.size(0) - 1, in.layer.x.size(1), in.layer.weight.size(1) - 1});
}

// A state that is updated in place, for `rows` of its slots.
void check_slots(const char* op, const ShortConvLayer& in, const Tensor& state, const Tensor& slots, int64_t rows) {
  require_type(op, "state", state, sum_type(in.x));
  require_shape(op, "state", state, {-1, in.x.size(1), in.weight.size(1) - 1});
  require_state_slots(op, {state}, slots, rows);
}

void check(const ShortConvPrefill& in) {
  constexpr const char* op = "short_conv_prefill";
  check_layer(op, in.layer);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  check_slots(op, in.layer, in.state, in.slots, in.cu_seqlens.size(0) - 1);
}

void check(const ShortConvStep& in) {
  constexpr const char* op = "short_conv_step";
  check_layer(op, in.layer);
  check_slots(op, in.layer, in.state, in.slots, in.layer.x.size(0));
}

void check(const ShortConvTokens& in) {
  constexpr const char* op = "short_conv_tokens";
  check_layer(op, in.layer);
  check_slots(op, in.layer, in.state, in.slots, 1);
  check_tokens_step(op, in.tokens, kernels::kShortConvStepTokens, in.layer.x.size(0), in.slots, {{"state", in.state, in.kept_state}});
}

// act(convolved + bias) ⊙ gate, of tensors that end in [channels].
Tensor finish(const Tensor& convolved, const Tensor& bias, const Tensor& gate, bool silu) {
  Tensor y = bias.defined() ? convolved + bias : convolved;
  if (silu) y = at::silu(y);
  return gate.defined() ? y * gate : y;
}

Result<ShortConv> forward_reference(const ShortConv& in) {
  check(in);
  const auto& [x, weight, bias, gate, silu] = in.layer;
  const std::vector<int64_t> starts = row_starts("short_conv", "cu_seqlens", in.cu_seqlens, x.size(0));
  const at::ScalarType type = sum_type(x);
  const int64_t rows = in.cu_seqlens.size(0) - 1, channels = x.size(1), taps = weight.size(1);
  const Tensor inputs = x.to(type), filter = weight.to(type);
  const Tensor initial = in.initial_state ? *in.initial_state : at::zeros({rows, channels, taps - 1}, inputs.options());
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
  Tensor y = finish(join(convolved, x.sizes(), inputs.options()), bias_or_none, gate_or_none, silu);
  if (in.adds_input) y = inputs + y;
  return {y.to(x.scalar_type()).contiguous(), join(states, initial.sizes(), initial.options()).contiguous()};
}

Result<ShortConv> forward_meta(const ShortConv& in) {
  check(in);
  const Tensor& x = in.layer.x;
  return {at::empty(x.sizes(), x.options()),
          at::empty({in.cu_seqlens.size(0) - 1, x.size(1), in.layer.weight.size(1) - 1}, x.options().dtype(sum_type(x)))};
}

Result<ShortConvBackward> backward_reference(const ShortConvBackward& in) {
  const ShortConv& forward = in.forward;
  const ShortConvLayer& layer = forward.layer;
  const auto function = [&](const std::vector<Tensor>& t) {
    const auto [y, state] = forward_reference(
        {{t[0], t[1], if_defined(t[2]), if_defined(t[3]), layer.silu}, forward.cu_seqlens, if_defined(t[4]), forward.adds_input});
    return std::vector<Tensor>{y, state};
  };
  const std::vector<Tensor> g = gradients_by_autograd(
      function,
      {layer.x, layer.weight, value_or_undefined(layer.bias), value_or_undefined(layer.gate), value_or_undefined(forward.initial_state)},
      {in.grad_y, value_or_undefined(in.grad_state)});
  return {g[0], g[1], g[2], g[3], g[4]};
}

Result<ShortConvBackward> backward_meta(const ShortConvBackward& in) {
  const auto like = [](const OptionalTensor& t) { return t ? at::empty(t->sizes(), t->options()) : Tensor(); };
  const ShortConvLayer& layer = in.forward.layer;
  return {like(layer.x), like(layer.weight), like(layer.bias), like(layer.gate), like(in.forward.initial_state)};
}

Tensor prefill_reference(const ShortConvPrefill& in) {
  check(in);
  const auto from_state = [&](const OptionalTensor& initial) { return forward_reference(ShortConv{in.layer, in.cu_seqlens, initial}); };
  return prefill_slots(in.slots, from_state, in.state);
}

Tensor step_reference(const ShortConvStep& in) {
  check(in);
  const auto& [x, weight, bias, gate, silu] = in.layer;
  const at::ScalarType type = sum_type(x);
  const Tensor filter = weight.to(type), bias_or_none = bias ? bias->to(type) : Tensor();
  Tensor y = at::empty(x.sizes(), x.options());
  // Row by row: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < x.size(0); ++row) {
    Tensor slot = in.state[in.slots[row].item<int64_t>()];
    const Tensor inputs = at::cat({slot, x[row].to(type).unsqueeze(1)}, 1);  // [channels, taps]
    y[row].copy_(finish((inputs * filter).sum(1), bias_or_none, gate ? (*gate)[row].to(type) : Tensor(), silu));
    slot.copy_(inputs.narrow(1, 1, inputs.size(1) - 1));
  }
  return y;
}

template <class Op>
Tensor short_conv_like_x(const Op& in) {
  check(in);
  return at::empty(in.layer.x.sizes(), in.layer.x.options());
}

// A launch's arguments and the tensors that own their memory.
struct ShortConvLaunch {
  Tensor x, weight, bias, gate, in_bias;
  kernels::ShortConv arguments;
};

// Memory for the gradients of x and gate. Where these are the columns of one tensor, so are the gradients.
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

ShortConvLaunch prepare(const ShortConvLayer& layer, const Tensor& in_bias = {}) {
  ShortConvLaunch launch{with_unit_columns(layer.x),
                         layer.weight.contiguous(),
                         layer.bias ? layer.bias->contiguous() : Tensor(),
                         layer.gate ? with_unit_columns(*layer.gate) : Tensor(),
                         in_bias.defined() ? in_bias.contiguous() : Tensor(),
                         {}};
  kernels::ShortConv& to = launch.arguments;
  to = layer_arguments(launch.x, launch.weight, launch.bias, launch.gate, layer.silu);
  if (in_bias.defined()) {
    to.x_bias = launch.in_bias.const_data_ptr();
    to.gate_bias = static_cast<const char*>(to.x_bias) + to.channels * kernels::dtype_size(to.dtype);
  }
  return launch;
}

// y; `state` is updated in place, for each row at its slot; where `slots` is null, at the row's number.
Tensor convolve(const ShortConvLaunchers& table, ShortConvLaunch launch, const Tensor& cu_seqlens, const Tensor& state,
                const int64_t* slots) {
  const Tensor& x = launch.x;
  check_row_starts("short_conv", "cu_seqlens", cu_seqlens, x.size(0));
  const Tensor starts = cu_seqlens.contiguous(), y = at::empty(x.sizes(), x.options());
  kernels::ShortConv& to = launch.arguments;
  to.y = y.mutable_data_ptr();
  to.y_stride = y.stride(0);
  to.state = state.mutable_data_ptr<float>();
  to.slot = slots;
  to.row_start = starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens.size(0) - 1;
  require_ok(table.forward(to, queue_of(x)));
  return y;
}

}  // namespace

Result<ShortConv> short_conv_with_input_bias(const ShortConv& in, const Tensor& in_bias) {
  const Tensor& x = in.layer.x;
  const ShortConvLaunchers* table = launchers_for<ShortConvLaunchers>("short_conv", x);
  if (table == nullptr) return forward_reference(in);
  check(in);
  const Tensor state = in.initial_state
                           ? in.initial_state->clone(at::MemoryFormat::Contiguous)
                           : at::zeros({in.cu_seqlens.size(0) - 1, x.size(1), in.layer.weight.size(1) - 1}, x.options().dtype(at::kFloat));
  ShortConvLaunch launch = prepare(in.layer, in_bias);
  launch.arguments.adds_input = in.adds_input && table->adds_input;
  Tensor y = convolve(*table, std::move(launch), in.cu_seqlens, state, nullptr);
  if (in.adds_input && !table->adds_input) y.add_(x);
  return {y, state};
}

Tensor short_conv_prefill_with_input_bias(const ShortConvPrefill& in, const Tensor& in_bias) {
  const ShortConvLaunchers* table = launchers_for<ShortConvLaunchers>("short_conv_prefill", in.layer.x);
  if (table == nullptr) return prefill_reference(in);
  check(in);
  const Tensor slot = in.slots.contiguous();
  return convolve(*table, prepare(in.layer, in_bias), in.cu_seqlens, in.state, slot.const_data_ptr<int64_t>());
}

namespace {

// What differs between the functions below. memory: where the gradient of x goes, if it is defined.
struct BackwardForm {
  Tensor in_bias;
  Tensor* sums_of_gradients = nullptr;
  Tensor memory;
};

Result<ShortConvBackward> backward_in_form(const ShortConvBackward& in, const BackwardForm& form) {
  const auto& [layer, cu_seqlens, initial_state, adds_input] = in.forward;
  const auto& [x, weight, bias, gate, silu] = layer;
  const ShortConvLaunchers* table = launchers_for<ShortConvLaunchers>("short_conv_backward", x);
  if (table == nullptr) {
    Result<ShortConvBackward> found = backward_reference(in);
    if (form.memory.defined()) std::get<0>(found) = form.memory.copy_(std::get<0>(found));
    return found;
  }
  check_row_starts("short_conv", "cu_seqlens", cu_seqlens, x.size(0));
  const Tensor starts = cu_seqlens.contiguous();
  ShortConvLaunch launch = prepare(layer, form.in_bias);
  launch.arguments.row_start = starts.const_data_ptr<int64_t>();
  launch.arguments.rows = cu_seqlens.size(0) - 1;
  launch.arguments.adds_input = adds_input && table->adds_input;
  const at::TensorOptions sums = x.options().dtype(at::kFloat);
  const Tensor cotangent = in.grad_y.contiguous(), grad_weight = at::empty(weight.sizes(), sums);
  const Tensor final_cotangent = in.grad_state ? in.grad_state->contiguous() : Tensor();
  const Tensor initial = initial_state ? initial_state->contiguous() : Tensor();
  auto [grad_x, grad_gate] = form.memory.defined() ? std::tuple(form.memory, Tensor()) : empty_gradients(x, gate);
  Tensor grad_bias, grad_initial;
  kernels::ShortConvBackward to;
  to.forward = launch.arguments;
  to.grad_y = cotangent.const_data_ptr();
  to.grad_x = grad_x.mutable_data_ptr(), to.grad_x_stride = grad_x.stride(0);
  to.grad_weight = grad_weight.mutable_data_ptr<float>();
  if (in.grad_state) to.grad_state = final_cotangent.const_data_ptr<float>();
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
  if (form.sums_of_gradients != nullptr && table->backward_sums(to)) {
    *form.sums_of_gradients = at::empty({2 * x.size(1)}, sums);
    to.grad_sums = form.sums_of_gradients->mutable_data_ptr<float>();
  }
  const Tensor scratch = scratch_memory(table->backward_scratch(to), x);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(x)));
  if (adds_input && !table->adds_input) grad_x.add_(cotangent);
  return {grad_x, grad_weight.to(weight.scalar_type()), bias ? grad_bias.to(bias->scalar_type()) : Tensor(), grad_gate, grad_initial};
}

}  // namespace

Result<ShortConvBackward> short_conv_backward_with_input_bias(const ShortConvBackward& in, const Tensor& in_bias, Tensor* sums) {
  return backward_in_form(in, {in_bias, sums, {}});
}
Result<ShortConvBackward> short_conv_backward_to(const ShortConvBackward& in, const Tensor& grad_x) {
  return backward_in_form(in, {{}, nullptr, grad_x});
}

namespace {

kernels::ShortConv with_step(kernels::ShortConv to, const Tensor& state, const Tensor& slots, const Tensor& y) {
  to.y = y.mutable_data_ptr();
  to.y_stride = y.stride(0);
  to.state = static_cast<float*>(state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(slots.const_data_ptr());
  return to;
}

}  // namespace

kernels::ShortConv short_conv_step_arguments(const ShortConvStep& in, const Tensor& y) {
  const auto& [x, weight, bias, gate, silu] = in.layer;
  return with_step(layer_arguments(x, weight, value_or_undefined(bias), value_or_undefined(gate), silu), in.state, in.slots, y);
}

namespace {

kernels::ShortConvTokens with_tokens(const kernels::ShortConv& step, const ShortConvTokens& in) {
  kernels::ShortConvTokens to{step, in.layer.x.size(0) - in.tokens, kept_memory(in.kept_state)};
  to.step.rows = 1, to.step.tokens = in.tokens;
  return to;
}

}  // namespace

kernels::ShortConvTokens short_conv_tokens_arguments(const ShortConvTokens& in, const Tensor& y) {
  return with_tokens(short_conv_step_arguments({in.layer, in.state, in.slots}, y), in);
}

namespace {

Tensor step(const ShortConvStep& in) {
  const Tensor& x = in.layer.x;
  const ShortConvLaunchers* table = launchers_for<ShortConvLaunchers>("short_conv_step", x);
  if (table == nullptr) return step_reference(in);
  check(in);
  const ShortConvLaunch launch = prepare(in.layer);
  const Tensor slots = in.slots.contiguous(), y = at::empty(x.sizes(), x.options());
  require_ok(table->step(with_step(launch.arguments, in.state, slots, y), queue_of(x)));
  return y;
}

Tensor tokens_reference(const ShortConvTokens& in) {
  check(in);
  const auto& [x, weight, bias, gate, silu] = in.layer;
  const auto step_row = [&, &x = x, &weight = weight, &bias = bias, &gate = gate, &silu = silu](const auto& row) {
    return call(ShortConvStep{{row(x), weight, bias, gate ? OptionalTensor(row(*gate)) : gate, silu}, in.state, in.slots});
  };
  return step_each_token(in.tokens, x.size(0), in.slots, {{"state", in.state, in.kept_state}}, step_row);
}

Tensor tokens(const ShortConvTokens& in) {
  const Tensor& x = in.layer.x;
  const ShortConvLaunchers* table = launchers_of<ShortConvLaunchers>(x);
  if (table == nullptr || table->step_tokens == nullptr) return tokens_reference(in);
  check(in);
  const ShortConvLaunch launch = prepare(in.layer);
  const Tensor slots = in.slots.contiguous(), y = at::empty(x.sizes(), x.options());
  require_ok(table->step_tokens(with_tokens(with_step(launch.arguments, in.state, slots, y), in), queue_of(x)));
  return y;
}

}  // namespace

std::tuple<Tensor, Tensor> short_conv_reference(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                                const OptionalTensor& gate, bool silu, const Tensor& cu_seqlens,
                                                const OptionalTensor& initial_state, bool adds_input) {
  return forward_reference(ShortConv{{x, weight, bias, gate, silu}, cu_seqlens, initial_state, adds_input});
}

std::tuple<Tensor, Tensor> short_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate,
                                      bool silu, const Tensor& cu_seqlens, const OptionalTensor& initial_state, bool adds_input) {
  return call(ShortConv{{x, weight, bias, gate, silu}, cu_seqlens, initial_state, adds_input});
}

Tensor short_conv_prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                          const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  const ShortConvLayer layer{x, weight, bias, gate, silu};
  if (!at::GradMode::is_enabled()) return call(ShortConvPrefill{layer, cu_seqlens, state, slots});
  const auto from_state = [&](const OptionalTensor& initial) { return call(ShortConv{layer, cu_seqlens, initial}); };
  return prefill_slots_with_gradient(slots, from_state, state);
}

Tensor short_conv_step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                       Tensor& state, const Tensor& slots) {
  return call(ShortConvStep{{x, weight, bias, gate, silu}, state, slots});
}

Tensor short_conv_tokens(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                         int64_t tokens, Tensor& state, const Tensor& slots, const Tensor& kept) {
  return call(ShortConvTokens{{x, weight, bias, gate, silu}, state, slots, kept, tokens});
}

namespace {

Result<ShortConv> short_conv_kernel(const ShortConv& in) { return short_conv_with_input_bias(in, {}); }
Result<ShortConvBackward> short_conv_backward_kernel(const ShortConvBackward& in) { return backward_in_form(in, {}); }
Result<ShortConvPrefill> short_conv_prefill_kernel(const ShortConvPrefill& in) { return short_conv_prefill_with_input_bias(in, {}); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<ShortConv>(m)
      .reference<forward_reference>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .kernel<short_conv_kernel>()
      .autograd<call_with_gradient<ShortConv, ShortConv, ShortConvBackward, forward_reference>>();
  define<ShortConvBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<short_conv_backward_kernel>();
  define<ShortConvPrefill>(m)
      .reference<prefill_reference>()
      .meta<short_conv_like_x<ShortConvPrefill>>()
      .kernel<short_conv_prefill_kernel>()
      .without_gradient();
  define<ShortConvStep>(m).reference<step_reference>().meta<short_conv_like_x<ShortConvStep>>().kernel<step>().without_gradient();
  define<ShortConvTokens>(m).reference<tokens_reference>().meta<short_conv_like_x<ShortConvTokens>>().kernel<tokens>().without_gradient();
}

}  // namespace
}  // namespace based::ops
