// torch.ops.based: the selective scan (Mamba).
#include "based/ops/scan/selective_scan_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::SelectiveScanLaunchers;
using Scan = std::tuple<Tensor, Tensor>;                                                                   // y, state
using ScanForward = std::tuple<Tensor, Tensor, Tensor>;                                                    // y, state, chunk_states
using ScanGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;  // see the schema

struct Inputs {
  Tensor x, dt, A_log, B, C;
  OptionalTensor D, z, dt_bias;
  bool softplus;
};

// Memory of a launch and its arguments.
struct Launch {
  Inputs inputs;
  Tensor starts;
  kernels::SelectiveScan arguments;
};

Launch prepare(const Inputs& in) {
  Launch launch{
      {with_unit_columns(in.x), with_unit_columns(in.dt), as_contiguous(in.A_log), with_packed_heads(in.B), with_packed_heads(in.C),
       as_contiguous(in.D), in.z ? OptionalTensor(with_unit_columns(*in.z)) : std::nullopt, as_contiguous(in.dt_bias), in.softplus},
      {},
      {}};
  launch.arguments = ops::selective_scan_arguments(launch.inputs);
  return launch;
}

void check_rows(const char* op, const Inputs& in, const Tensor& cu_seqlens) {
  ops::check_selective_scan_inputs(op, in);
  require_row_starts(op, "cu_seqlens", cu_seqlens);
  check_row_starts(op, "cu_seqlens", cu_seqlens, in.x.size(0));
}

void check_slots(const char* op, const Inputs& in, const Tensor& state, const Tensor& slots, int64_t rows) {
  ops::check_selective_scan_state(op, "state", state, -1, in);
  require_state_slots(op, {state}, slots, rows);
}

// y. A row's state is that of its slot; where `slots` is null, of its number.
Tensor run(const char* op, const SelectiveScanLaunchers& table, Launch& launch, const Tensor& state, const int64_t* slots) {
  const Tensor y = empty(sizes_of(launch.inputs.x), launch.inputs.x);
  kernels::SelectiveScan& to = launch.arguments;
  to.y = written_data(y), to.y_stride = y.stride(0);
  to.state = written<float>(state), to.slot = slots;
  const Tensor scratch = scratch_memory(table.forward_scratch(to), y);
  require_ok(op, table.forward(to, written_data(scratch), queue_of(y)), y);
  return y;
}

Tensor first_state(const Inputs& in, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  if (initial_state) return copy_of(*initial_state);
  return zeros({cu_seqlens.size(0) - 1, in.x.size(1), in.A_log.size(1)}, in.x, ScalarType::Float);
}

void check(const char* op, const Inputs& in, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  check_rows(op, in, cu_seqlens);
  if (initial_state) ops::check_selective_scan_state(op, "initial_state", *initial_state, cu_seqlens.size(0) - 1, in);
}

Scan scan(const Tensor& x, const Tensor& dt, const Tensor& A_log, const Tensor& B, const Tensor& C, const OptionalTensor& D,
          const OptionalTensor& z, const OptionalTensor& dt_bias, bool softplus, const Tensor& cu_seqlens,
          const OptionalTensor& initial_state) {
  constexpr const char* kOp = "selective_scan";
  const Inputs in{x, dt, A_log, B, C, D, z, dt_bias, softplus};
  check(kOp, in, cu_seqlens, initial_state);
  const auto* table = launchers_for<SelectiveScanLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Scan>(kOp, x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const Tensor state = first_state(in, cu_seqlens, initial_state);
  return {run(kOp, *table, launch, state, nullptr), state};
}

ScanForward forward(const Tensor& x, const Tensor& dt, const Tensor& A_log, const Tensor& B, const Tensor& C, const OptionalTensor& D,
                    const OptionalTensor& z, const OptionalTensor& dt_bias, bool softplus, const Tensor& cu_seqlens,
                    const OptionalTensor& initial_state) {
  constexpr const char* kOp = "selective_scan_forward";
  const Inputs in{x, dt, A_log, B, C, D, z, dt_bias, softplus};
  check(kOp, in, cu_seqlens, initial_state);
  const auto* table = launchers_for<SelectiveScanLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<ScanForward>(kOp, x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const Tensor state = first_state(in, cu_seqlens, initial_state);
  const int64_t chunks = kernels::selective_scan_chunks(x.size(0), launch.arguments.rows, table->chunk);
  const Tensor chunk_states = empty({chunks, A_log.size(1), x.size(1)}, x, ScalarType::Float);
  launch.arguments.chunk_states = written<float>(chunk_states);
  return {run(kOp, *table, launch, state, nullptr), state, chunk_states};
}

ScanGradients backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x, const Tensor& dt, const Tensor& A_log,
                       const Tensor& B, const Tensor& C, const OptionalTensor& D, const OptionalTensor& z, const OptionalTensor& dt_bias,
                       bool softplus, const Tensor& cu_seqlens, const OptionalTensor& initial_state, const Tensor& chunk_states) {
  constexpr const char* kOp = "selective_scan_backward";
  const Inputs in{x, dt, A_log, B, C, D, z, dt_bias, softplus};
  check(kOp, in, cu_seqlens, initial_state);
  require_like(kOp, "grad_y", grad_y, x);
  require_shape(kOp, "grad_y", grad_y, sizes_of(x));
  const auto* table = launchers_for<SelectiveScanLaunchers>(kOp, x);
  if (table == nullptr)
    return call_reference<ScanGradients>(kOp, grad_y, grad_state, x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state,
                                         chunk_states);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const int64_t rows = launch.arguments.rows;
  require_shape(kOp, "chunk_states", chunk_states,
                {kernels::selective_scan_chunks(x.size(0), rows, table->chunk), A_log.size(1), x.size(1)});
  if (grad_state) ops::check_selective_scan_state(kOp, "grad_state", *grad_state, rows, in);
  const Tensor cotangent = as_contiguous(grad_y), kept = as_contiguous(chunk_states);
  const OptionalTensor state_cotangent = as_contiguous(grad_state);
  const auto like = [](const Tensor& t) { return empty(sizes_of(t), t); };
  const auto like_if = [&](const OptionalTensor& t) { return t ? like(*t) : Tensor(); };
  const auto sums_like = [](const OptionalTensor& t) { return t ? empty(sizes_of(*t), *t, ScalarType::Float) : Tensor(); };
  const auto floats = [](const Tensor& t) { return t.defined() ? written<float>(t) : nullptr; };
  const Tensor grad_x = like(x), grad_dt = like(dt), grad_z = like_if(z), grad_B = like(B), grad_C = like(C);
  const Tensor grad_A_log = sums_like(A_log), grad_D = sums_like(D), grad_dt_bias = sums_like(dt_bias),
               grad_initial = sums_like(initial_state);
  kernels::SelectiveScanBackward to;
  to.forward = launch.arguments;
  to.forward.chunk_states = written<float>(kept);
  to.grad_y = data(cotangent), to.grad_state = pointer<float>(state_cotangent);
  to.grad_x = written_data(grad_x), to.grad_dt = written_data(grad_dt), to.grad_z = z ? written_data(grad_z) : nullptr,
  to.grad_z_stride = x.size(1);
  to.grad_B = written_data(grad_B), to.grad_C = written_data(grad_C);
  to.grad_A_log = floats(grad_A_log), to.grad_D = floats(grad_D), to.grad_dt_bias = floats(grad_dt_bias);
  to.grad_initial_state = floats(grad_initial);
  const Tensor scratch = scratch_memory(table->backward_scratch(to), x);
  require_ok(kOp, table->backward(to, written_data(scratch), queue_of(x)), x);
  const auto rounded = [&](const Tensor& t) { return t.defined() ? as_contiguous(t, x.scalar_type()) : t; };
  return {grad_x, grad_dt, rounded(grad_A_log), grad_B, grad_C, rounded(grad_D), grad_z, rounded(grad_dt_bias), grad_initial};
}

Tensor prefill(const Tensor& x, const Tensor& dt, const Tensor& A_log, const Tensor& B, const Tensor& C, const OptionalTensor& D,
               const OptionalTensor& z, const OptionalTensor& dt_bias, bool softplus, const Tensor& cu_seqlens, const Tensor& state,
               const Tensor& slots) {
  constexpr const char* kOp = "selective_scan_prefill";
  const Inputs in{x, dt, A_log, B, C, D, z, dt_bias, softplus};
  check_rows(kOp, in, cu_seqlens);
  check_slots(kOp, in, state, slots, cu_seqlens.size(0) - 1);
  const auto* table = launchers_for<SelectiveScanLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Tensor>(kOp, x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, state, slots);
  Launch launch = prepare(in);
  set_rows(launch, cu_seqlens);
  const Tensor slot = as_contiguous(slots);
  return run(kOp, *table, launch, state, pointer<int64_t>(slot));
}

Tensor step(const Tensor& x, const Tensor& dt, const Tensor& A_log, const Tensor& B, const Tensor& C, const OptionalTensor& D,
            const OptionalTensor& z, const OptionalTensor& dt_bias, bool softplus, const Tensor& state, const Tensor& slots) {
  constexpr const char* kOp = "selective_scan_step";
  const Inputs in{x, dt, A_log, B, C, D, z, dt_bias, softplus};
  ops::check_selective_scan_inputs(kOp, in);
  check_slots(kOp, in, state, slots, x.size(0));
  const auto* table = launchers_for<SelectiveScanLaunchers>(kOp, x);
  if (table == nullptr) return call_reference<Tensor>(kOp, x, dt, A_log, B, C, D, z, dt_bias, softplus, state, slots);
  Launch launch = prepare(in);
  const Tensor y = empty(sizes_of(x), x), slot = as_contiguous(slots);
  kernels::SelectiveScan& to = launch.arguments;
  to.y = written_data(y), to.y_stride = y.stride(0);
  to.state = written<float>(state), to.slot = pointer<int64_t>(slot);
  require_ok(kOp, table->step(to, queue_of(x)), x);
  return y;
}

void register_kernels(Library& m) {
  implement<scan>(m, "selective_scan");
  implement<forward>(m, "selective_scan_forward");
  implement<backward>(m, "selective_scan_backward");
  implement<prefill>(m, "selective_scan_prefill");
  implement<step>(m, "selective_scan_step");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  define_with_reference(m,
                        "selective_scan(Tensor x, Tensor dt, Tensor A_log, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, bool "
                        "softplus, Tensor cu_seqlens, Tensor? initial_state=None) -> (Tensor y, Tensor state)");
  define_with_reference(
      m,
      "selective_scan_forward(Tensor x, Tensor dt, Tensor A_log, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, bool softplus, "
      "Tensor cu_seqlens, Tensor? initial_state=None) -> (Tensor y, Tensor state, Tensor chunk_states)");
  define_with_reference(m,
                        "selective_scan_backward(Tensor grad_y, Tensor? grad_state, Tensor x, Tensor dt, Tensor A_log, Tensor B, Tensor C, "
                        "Tensor? D, Tensor? z, Tensor? dt_bias, bool softplus, Tensor cu_seqlens, Tensor? initial_state, Tensor "
                        "chunk_states) -> (Tensor grad_x, Tensor grad_dt, Tensor grad_A_log, Tensor grad_B, Tensor grad_C, Tensor grad_D, "
                        "Tensor grad_z, Tensor grad_dt_bias, Tensor grad_initial_state)");
  define_with_reference(m,
                        "selective_scan_prefill(Tensor x, Tensor dt, Tensor A_log, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? "
                        "dt_bias, bool softplus, Tensor cu_seqlens, Tensor(a!) state, Tensor slots) -> Tensor");
  define_with_reference(m,
                        "selective_scan_step(Tensor x, Tensor dt, Tensor A_log, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, "
                        "bool softplus, Tensor(a!) state, Tensor slots) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
