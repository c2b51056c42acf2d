#include "based/ops/scan/selective_scan.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"
#include "based/ops/scan/selective_scan_arguments.h"

namespace based::ops {
namespace {

using kernels::kSelectiveScanChunk;
using kernels::SelectiveScanLaunchers;

int64_t rows_of(const SelectiveScan& in) { return in.cu_seqlens.size(0) - 1; }
std::vector<int64_t> state_shape(const SelectiveScan& in) { return {rows_of(in), in.inputs.x.size(1), in.inputs.A_log.size(1)}; }
std::vector<int64_t> chunks_shape(const SelectiveScan& in, int64_t chunk = kSelectiveScanChunk) {
  const auto& inputs = in.inputs;
  return {kernels::selective_scan_chunks(inputs.x.size(0), rows_of(in), chunk), inputs.A_log.size(1), inputs.x.size(1)};
}
at::TensorOptions sums_of(const Tensor& x) { return x.options().dtype(sum_type(x)); }

void check(const SelectiveScan& in) {
  constexpr const char* op = "selective_scan";
  check_selective_scan_inputs(op, in.inputs);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  if (in.initial_state) check_selective_scan_state(op, "initial_state", *in.initial_state, rows_of(in), in.inputs);
}

// A state that is updated in place, for `rows` of its slots.
void check_slots(const char* op, const SelectiveScanInputs& in, const Tensor& state, const Tensor& slots, int64_t rows) {
  check_selective_scan_state(op, "state", state, -1, in);
  require_state_slots(op, {state}, slots, rows);
}

void check(const SelectiveScanPrefill& in) {
  constexpr const char* op = "selective_scan_prefill";
  check_selective_scan_inputs(op, in.inputs);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  check_slots(op, in.inputs, in.state, in.slots, in.cu_seqlens.size(0) - 1);
}

void check(const SelectiveScanStep& in) {
  constexpr const char* op = "selective_scan_step";
  check_selective_scan_inputs(op, in.inputs);
  check_slots(op, in.inputs, in.state, in.slots, in.inputs.x.size(0));
}

// The terms of the recurrence, computed from the inputs in the type of the sums.
struct Terms {
  Tensor x, step, in, A, B, C;  // x, step, in (δ x) [tokens, channels], A [channels, state_size], B, C [tokens, channels, state_size]

  explicit Terms(const SelectiveScanInputs& inputs) {
    const at::ScalarType type = sum_type(inputs.x);
    x = inputs.x.to(type), step = inputs.dt.to(type), A = -inputs.A_log.to(type).exp();
    if (inputs.dt_bias) step = step + inputs.dt_bias->to(type);
    if (inputs.softplus) step = at::softplus(step);
    in = step * x;
    const auto of_channels = [&](const Tensor& groups) { return groups.to(type).repeat_interleave(x.size(1) / groups.size(1), 1); };
    B = of_channels(inputs.B), C = of_channels(inputs.C);
  }

  // The state [rows, channels, state_size] after one more token of each row; for one row, also without that dimension.
  static Tensor next(const Tensor& h, const Tensor& step, const Tensor& in, const Tensor& A, const Tensor& B) {
    return (step.unsqueeze(-1) * A).exp() * h + in.unsqueeze(-1) * B;
  }
};

// (read + D x) silu(z), of tensors that end in [channels].
Tensor finish(const SelectiveScanInputs& inputs, const Tensor& read, const Tensor& x, const Tensor& z) {
  Tensor y = inputs.D ? read + inputs.D->to(read.scalar_type()) * x : read;
  return z.defined() ? y * at::silu(z) : y;
}

// chunk_states undefined where they are not kept.
Result<SelectiveScanForward> scan_reference(const SelectiveScan& in, bool keeps) {
  check(in);
  const SelectiveScanInputs& inputs = in.inputs;
  const std::vector<int64_t> starts = row_starts("selective_scan", "cu_seqlens", in.cu_seqlens, inputs.x.size(0));
  const Terms terms(inputs);
  const Tensor initial = in.initial_state ? *in.initial_state : at::zeros(state_shape(in), terms.x.options());
  Tensor chunk_states = keeps ? at::zeros(chunks_shape(in), terms.x.options()) : Tensor();
  std::vector<Tensor> read, states;
  for (const Run& run : equal_runs(starts)) {
    const Tensor step = tokens_of(terms.step, run), input = tokens_of(terms.in, run), B = tokens_of(terms.B, run),
                 C = tokens_of(terms.C, run);
    Tensor h = initial.narrow(0, run.first_row, run.rows);
    std::vector<Tensor> of_tokens;
    for (int64_t t = 0; t < run.length; ++t) {
      for (int64_t row = 0; keeps && t % kSelectiveScanChunk == 0 && row < run.rows; ++row) {
        const int64_t first = kernels::selective_scan_first_chunk(run.first_row + row, run.first_token + row * run.length);
        chunk_states[first + t / kSelectiveScanChunk].copy_(h[row].t());
      }
      h = Terms::next(h, step.select(1, t), input.select(1, t), terms.A, B.select(1, t));
      of_tokens.push_back((h * C.select(1, t)).sum(-1));
    }
    if (run.length > 0) read.push_back(at::stack(of_tokens, 1).flatten(0, 1));
    states.push_back(h);
  }
  const Tensor z = inputs.z ? inputs.z->to(terms.x.scalar_type()) : Tensor();
  const Tensor y = finish(inputs, join(read, inputs.x.sizes(), terms.x.options()), terms.x, z);
  return {y.to(inputs.x.scalar_type()).contiguous(), join(states, initial.sizes(), initial.options()).contiguous(), chunk_states};
}

Result<SelectiveScan> reference(const SelectiveScan& in) {
  const auto [y, state, chunk_states] = scan_reference(in, false);
  return {y, state};
}

Result<SelectiveScan> scan_meta(const SelectiveScan& in) {
  check(in);
  const Tensor& x = in.inputs.x;
  return {at::empty(x.sizes(), x.options()), at::empty(state_shape(in), sums_of(x))};
}

Result<SelectiveScanForward> forward_meta(const SelectiveScanForward& in) {
  const auto [y, state] = scan_meta(in.scan);
  return {y, state, at::empty(chunks_shape(in.scan), state.options())};
}

Result<SelectiveScanBackward> backward_reference(const SelectiveScanBackward& in) {
  const auto& [inputs, cu_seqlens, initial_state] = in.forward;
  const auto function = [&, softplus = inputs.softplus, &cu = cu_seqlens](const std::vector<Tensor>& x) {
    const auto [y, state] = reference(SelectiveScan{
        {x[0], x[1], x[2], x[3], x[4], if_defined(x[5]), if_defined(x[6]), if_defined(x[7]), softplus}, cu, if_defined(x[8])});
    return std::vector<Tensor>{y, state};
  };
  const std::vector<Tensor> g =
      gradients_by_autograd(function,
                            {inputs.x, inputs.dt, inputs.A_log, inputs.B, inputs.C, value_or_undefined(inputs.D),
                             value_or_undefined(inputs.z), value_or_undefined(inputs.dt_bias), value_or_undefined(initial_state)},
                            {in.grad_y, value_or_undefined(in.grad_state)});
  return {g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8]};
}

Result<SelectiveScanBackward> backward_meta(const SelectiveScanBackward& in) {
  const auto like = [](const OptionalTensor& t) { return t ? at::empty(t->sizes(), t->options()) : Tensor(); };
  const SelectiveScanInputs& inputs = in.forward.inputs;
  return {like(inputs.x), like(inputs.dt),      like(inputs.A_log),
          like(inputs.B), like(inputs.C),       like(inputs.D),
          like(inputs.z), like(inputs.dt_bias), like(in.forward.initial_state)};
}

Tensor prefill_reference(const SelectiveScanPrefill& in) {
  check(in);
  const auto from_state = [&](const OptionalTensor& initial) { return reference(SelectiveScan{in.inputs, in.cu_seqlens, initial}); };
  return prefill_slots(in.slots, from_state, in.state);
}

Tensor step_reference(const SelectiveScanStep& in) {
  check(in);
  const SelectiveScanInputs& inputs = in.inputs;
  Tensor y = at::empty(inputs.x.sizes(), inputs.x.options());
  // Row by row: the order of additions must not depend on the other rows.
  for (int64_t row = 0; row < inputs.x.size(0); ++row) {
    const auto one = [&](const Tensor& t) { return t.narrow(0, row, 1); };
    const Terms terms({one(inputs.x), one(inputs.dt), inputs.A_log, one(inputs.B), one(inputs.C), {}, {}, inputs.dt_bias, inputs.softplus});
    Tensor slot = in.state[in.slots[row].item<int64_t>()];
    slot.copy_(Terms::next(slot, terms.step[0], terms.in[0], terms.A, terms.B[0]));
    y[row].copy_(finish(inputs, (slot * terms.C[0]).sum(-1), terms.x[0], inputs.z ? (*inputs.z)[row].to(slot.scalar_type()) : Tensor()));
  }
  return y;
}

template <class Op>
Tensor selective_scan_like_x(const Op& in) {
  check(in);
  return at::empty(in.inputs.x.sizes(), in.inputs.x.options());
}

// Memory of a launch, kept until it is over.
struct SelectiveScanLaunch {
  SelectiveScanInputs inputs;
  kernels::SelectiveScan arguments;

  explicit SelectiveScanLaunch(const SelectiveScanInputs& in)
      : inputs{with_unit_columns(in.x),
               with_unit_columns(in.dt),
               in.A_log.contiguous(),
               with_packed_heads(in.B),
               with_packed_heads(in.C),
               contiguous(in.D),
               in.z ? OptionalTensor(with_unit_columns(*in.z)) : std::nullopt,
               contiguous(in.dt_bias),
               in.softplus},
        arguments(selective_scan_arguments(inputs)) {}
  static OptionalTensor contiguous(const OptionalTensor& t) { return t ? OptionalTensor(t->contiguous()) : std::nullopt; }
};

// y; `state` is updated in place: a row's is that of its slot, or where `slots` is null, of its number.
Tensor scan(const SelectiveScanLaunchers& table, const SelectiveScanInputs& inputs, const Tensor& cu_seqlens, const Tensor& state,
            const int64_t* slots, const Tensor& chunk_states) {
  check_row_starts("selective_scan", "cu_seqlens", cu_seqlens, inputs.x.size(0));
  SelectiveScanLaunch launch(inputs);
  const Tensor starts = cu_seqlens.contiguous(), y = at::empty(inputs.x.sizes(), inputs.x.options());
  kernels::SelectiveScan& to = launch.arguments;
  to.y = y.mutable_data_ptr(), to.y_stride = y.stride(0);
  to.state = state.mutable_data_ptr<float>();
  to.slot = slots;
  if (chunk_states.defined()) to.chunk_states = chunk_states.mutable_data_ptr<float>();
  to.row_start = starts.const_data_ptr<int64_t>();
  to.rows = cu_seqlens.size(0) - 1;
  const Tensor scratch = scratch_memory(table.forward_scratch(to), inputs.x);
  require_ok(table.forward(to, scratch.mutable_data_ptr(), queue_of(inputs.x)));
  return y;
}

Tensor first_state(const SelectiveScan& in) {
  return in.initial_state ? in.initial_state->clone(at::MemoryFormat::Contiguous) : at::zeros(state_shape(in), sums_of(in.inputs.x));
}

Result<SelectiveScan> whole(const SelectiveScan& in) {
  const SelectiveScanLaunchers* table = launchers_for<SelectiveScanLaunchers>("selective_scan", in.inputs.x);
  if (table == nullptr) return reference(in);
  check(in);
  const Tensor state = first_state(in);
  return {scan(*table, in.inputs, in.cu_seqlens, state, nullptr, {}), state};
}

Result<SelectiveScanForward> forward(const SelectiveScanForward& in) {
  const SelectiveScanLaunchers* table = launchers_for<SelectiveScanLaunchers>("selective_scan_forward", in.scan.inputs.x);
  if (table == nullptr) return scan_reference(in.scan, true);
  check(in.scan);
  const Tensor state = first_state(in.scan), chunk_states = at::empty(chunks_shape(in.scan, table->chunk), state.options());
  return {scan(*table, in.scan.inputs, in.scan.cu_seqlens, state, nullptr, chunk_states), state, chunk_states};
}

Tensor prefill(const SelectiveScanPrefill& in) {
  const SelectiveScanLaunchers* table = launchers_for<SelectiveScanLaunchers>("selective_scan_prefill", in.inputs.x);
  if (table == nullptr) return prefill_reference(in);
  check(in);
  const Tensor slot = in.slots.contiguous();
  return scan(*table, in.inputs, in.cu_seqlens, in.state, slot.const_data_ptr<int64_t>(), {});
}

}  // namespace

Result<SelectiveScanBackward> selective_scan_backward_to(const SelectiveScanBackward& in, const Tensor& grad_z) {
  const auto& [inputs, cu_seqlens, initial_state] = in.forward;
  const SelectiveScanLaunchers* table = launchers_for<SelectiveScanLaunchers>("selective_scan_backward", inputs.x);
  if (table == nullptr) {
    Result<SelectiveScanBackward> found = backward_reference(in);
    if (grad_z.defined()) std::get<6>(found) = grad_z.copy_(std::get<6>(found));
    return found;
  }
  check_row_starts("selective_scan", "cu_seqlens", cu_seqlens, inputs.x.size(0));
  const Tensor starts = cu_seqlens.contiguous(), cotangent = in.grad_y.contiguous(), kept = in.chunk_states.contiguous();
  const Tensor final_cotangent = in.grad_state ? in.grad_state->contiguous() : Tensor();
  const SelectiveScanLaunch launch(inputs);
  const at::TensorOptions sums = inputs.x.options().dtype(at::kFloat);
  const auto like = [](const OptionalTensor& t, const at::TensorOptions& options) { return t ? at::empty(t->sizes(), options) : Tensor(); };
  const Tensor x = like(inputs.x, inputs.x.options()), dt = like(inputs.dt, inputs.x.options()),
               z = grad_z.defined() ? grad_z : like(inputs.z, inputs.x.options());
  const Tensor B = like(inputs.B, inputs.x.options()), C = like(inputs.C, inputs.x.options());
  const Tensor A_log = like(inputs.A_log, sums), D = like(inputs.D, sums), dt_bias = like(inputs.dt_bias, sums);
  const Tensor initial = like(initial_state, sums);
  kernels::SelectiveScanBackward to;
  const auto floats = [](const Tensor& t) { return t.defined() ? t.mutable_data_ptr<float>() : nullptr; };
  to.forward = launch.arguments;
  to.forward.row_start = starts.const_data_ptr<int64_t>();
  to.forward.rows = cu_seqlens.size(0) - 1;
  to.forward.chunk_states = floats(kept);
  to.grad_y = cotangent.const_data_ptr();
  to.grad_state = floats(final_cotangent);
  to.grad_x = x.mutable_data_ptr(), to.grad_dt = dt.mutable_data_ptr();
  if (z.defined()) to.grad_z = z.mutable_data_ptr(), to.grad_z_stride = z.stride(0);
  to.grad_B = B.mutable_data_ptr(), to.grad_C = C.mutable_data_ptr();
  to.grad_A_log = floats(A_log), to.grad_D = floats(D), to.grad_dt_bias = floats(dt_bias);
  to.grad_initial_state = floats(initial);
  const Tensor scratch = scratch_memory(table->backward_scratch(to), inputs.x);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(inputs.x)));
  const auto rounded = [&](const Tensor& t) { return t.defined() ? t.to(inputs.x.scalar_type()) : t; };
  return {x, dt, rounded(A_log), B, C, rounded(D), z, rounded(dt_bias), initial};
}

kernels::SelectiveScan selective_scan_step_arguments(const SelectiveScanStep& in, const Tensor& y) {
  kernels::SelectiveScan to = selective_scan_arguments(in.inputs);
  to.y = y.mutable_data_ptr(), to.y_stride = y.stride(0);
  to.state = static_cast<float*>(in.state.mutable_data_ptr());
  to.slot = static_cast<const int64_t*>(in.slots.const_data_ptr());
  return to;
}

namespace {

Tensor step(const SelectiveScanStep& in) {
  const Tensor& x = in.inputs.x;
  const SelectiveScanLaunchers* table = launchers_for<SelectiveScanLaunchers>("selective_scan_step", x);
  if (table == nullptr) return step_reference(in);
  check(in);
  const SelectiveScanLaunch launch(in.inputs);
  const Tensor slots = in.slots.contiguous(), y = at::empty(x.sizes(), x.options());
  require_ok(table->step(selective_scan_step_arguments({launch.inputs, in.state, slots}, y), queue_of(x)));
  return y;
}

}  // namespace

std::tuple<Tensor, Tensor> selective_scan_reference(const SelectiveScanInputs& inputs, const Tensor& cu_seqlens,
                                                    const OptionalTensor& initial_state) {
  return reference(SelectiveScan{inputs, cu_seqlens, initial_state});
}

std::tuple<Tensor, Tensor> selective_scan(const SelectiveScanInputs& inputs, const Tensor& cu_seqlens,
                                          const OptionalTensor& initial_state) {
  return call(SelectiveScan{inputs, cu_seqlens, initial_state});
}

Tensor selective_scan_prefill(const SelectiveScanInputs& inputs, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots) {
  if (!at::GradMode::is_enabled()) return call(SelectiveScanPrefill{inputs, cu_seqlens, state, slots});
  const auto from_state = [&](const OptionalTensor& initial) { return call(SelectiveScan{inputs, cu_seqlens, initial}); };
  return prefill_slots_with_gradient(slots, from_state, state);
}

Tensor selective_scan_step(const SelectiveScanInputs& inputs, Tensor& state, const Tensor& slots) {
  return call(SelectiveScanStep{inputs, state, slots});
}

namespace {

Result<SelectiveScanForward> selective_scan_forward_reference(const SelectiveScanForward& in) { return scan_reference(in.scan, true); }
Result<SelectiveScanBackward> backward(const SelectiveScanBackward& in) { return selective_scan_backward_to(in, {}); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<SelectiveScan>(m)
      .reference<reference>()
      .meta<scan_meta>()
      .kernel<whole>()
      .autograd<call_with_gradient<SelectiveScan, SelectiveScanForward, SelectiveScanBackward, reference>>();
  define<SelectiveScanForward>(m).reference<selective_scan_forward_reference>().meta<forward_meta>().kernel<forward>();
  define<SelectiveScanBackward>(m).reference<backward_reference>().meta<backward_meta>().kernel<backward>();
  define<SelectiveScanPrefill>(m)
      .reference<prefill_reference>()
      .meta<selective_scan_like_x<SelectiveScanPrefill>>()
      .kernel<prefill>()
      .without_gradient();
  define<SelectiveScanStep>(m)
      .reference<step_reference>()
      .meta<selective_scan_like_x<SelectiveScanStep>>()
      .kernel<step>()
      .without_gradient();
}

}  // namespace
}  // namespace based::ops
