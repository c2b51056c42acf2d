#include "based/ops/gated_long_conv.h"

#include "based/ops/long_conv.h"
#include "based/ops/operator_gradient.h"
#include "based/ops/recompute.h"
#include "based/ops/rows.h"
#include "based/ops/split_columns.h"

namespace based::ops {
namespace {

void check(const GatedLongConv& in) {
  constexpr const char* op = "gated_long_conv";
  const auto& [q, k, v, filter, length] = in;
  require(at::isFloatingType(q.scalar_type()), op, "q must be floating, got ", q.scalar_type());
  require_shape(op, "q", q, {-1, -1});
  require_like(op, "k", k, q);
  require_shape(op, "k", k, q.sizes());
  require_like(op, "v", v, q);
  require_shape(op, "v", v, q.sizes());
  require_type(op, "filter", filter, sum_type(q));
  require_shape(op, "filter", filter, {-1, -1});
  require(filter.size(0) >= 1 && q.size(1) % filter.size(0) == 0, op, "channels, ", q.size(1), ", must be a multiple of the filters, got ",
          filter.size(0));
  require(filter.size(1) >= 1, op, "taps must be at least 1, got ", filter.size(1));
  require(length >= 1 && q.size(0) % length == 0, op, "tokens, ", q.size(0), ", must be a multiple of the length, got ", length);
}

Tensor forward_reference(const GatedLongConv& in) {
  check(in);
  const auto& [q, k, v, filter, length] = in;
  const int64_t heads = filter.size(0), head_dim = q.size(1) / heads;
  const auto by_head = [&](const Tensor& x) { return x.to(filter.scalar_type()).unflatten(1, {heads, head_dim}); };
  const Tensor products = (by_head(k).unsqueeze(3) * by_head(v).unsqueeze(2)).view({q.size(0) / length, length, -1});
  const Tensor sums =
      long_conv_of_batch(products, filter.repeat_interleave(head_dim * head_dim, 0)).reshape({q.size(0), heads, head_dim, head_dim});
  return (by_head(q).unsqueeze(3) * sums).sum(2).flatten(1).to(q.scalar_type());
}

Result<GatedLongConvBackward> backward_reference(const GatedLongConvBackward& in) {
  const auto& [q, k, v, filter, length] = in.forward;
  const auto found = gradients_by_autograd(
      [length = length](const std::vector<Tensor>& t) {
        return std::vector<Tensor>{forward_reference({t[0], t[1], t[2], t[3], length})};
      },
      {q, k, v, filter}, {in.grad_y});
  return {found[0], found[1], found[2], found[3]};
}

Tensor forward_meta(const GatedLongConv& in) {
  check(in);
  return at::empty(in.q.sizes(), in.q.options());
}
Result<GatedLongConvBackward> backward_meta(const GatedLongConvBackward& in) {
  check(in.forward);
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {like(in.forward.q), like(in.forward.k), like(in.forward.v), like(in.forward.filter)};
}

// ATen's own gradient on the CPU, where there is no kernel and running the forward again would cost a third.
Tensor differentiable(const GatedLongConv& in) {
  if (in.q.is_cpu()) return forward_reference(in);
  return call_with_gradient<GatedLongConv, GatedLongConv, GatedLongConvBackward, forward_reference>(in);
}

// Tensors as the kernels take them, which must outlive the launch.
struct Launch {
  Tensor q, k, v, filter;
  kernels::GatedLongConv arguments;
};

Tensor in_fp32(const Tensor& x) { return with_unit_columns(x.to(at::kFloat)); }

Launch prepare(const GatedLongConv& in) {
  Launch launch{in_fp32(in.q), in_fp32(in.k), in_fp32(in.v), in.filter.contiguous(), {}};
  kernels::GatedLongConv& to = launch.arguments;
  to.q = launch.q.const_data_ptr<float>(), to.k = launch.k.const_data_ptr<float>(), to.v = launch.v.const_data_ptr<float>();
  to.filter = launch.filter.const_data_ptr<float>();
  to.q_stride = launch.q.stride(0), to.k_stride = launch.k.stride(0), to.v_stride = launch.v.stride(0), to.y_stride = in.q.size(1);
  to.rows = in.q.size(0) / in.length, to.length = in.length, to.channels = in.q.size(1), to.taps = in.filter.size(1);
  to.head_dim = static_cast<int32_t>(in.q.size(1) / in.filter.size(0));
  to.single_tf32 = at::globalContext().allowTF32CuBLAS();
  return launch;
}

bool has_type(const Tensor& q) { return q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16; }

}  // namespace

Tensor gated_long_conv_with(const GatedLongConvKernels& table, const GatedLongConv& in) {
  check(in);
  if (!has_type(in.q)) return forward_reference(in);
  Launch launch = prepare(in);
  if (!uses_kernel("gated_long_conv", in.q, table.takes(launch.arguments))) return forward_reference(in);
  const Tensor y = at::empty(in.q.sizes(), launch.q.options());
  launch.arguments.y = y.mutable_data_ptr<float>();
  require_ok(table.forward(launch.arguments));
  return y.to(in.q.scalar_type());
}

Result<GatedLongConvBackward> gated_long_conv_backward_with(const GatedLongConvKernels& table, const GatedLongConvBackward& in) {
  const auto& [q, k, v, filter, length] = in.forward;
  check(in.forward);
  if (!has_type(q)) return backward_reference(in);
  const Launch launch = prepare(in.forward);
  if (!uses_kernel("gated_long_conv_backward", q, table.backward_takes(launch.arguments))) return backward_reference(in);
  // Gradients lie side by side where k, q and v do, so that they are the gradient of what these are columns of.
  const int64_t channels = q.size(1);
  std::vector<Tensor> grads;
  if (joined_columns({launch.k, launch.q, launch.v})) {
    grads = at::empty({q.size(0), 3 * channels}, launch.q.options()).split(channels, 1);
  } else {
    for (int i = 0; i < 3; ++i) grads.push_back(at::empty({q.size(0), channels}, launch.q.options()));
  }
  const Tensor grad_y = in_fp32(in.grad_y), grad_filter = at::empty(launch.filter.sizes(), launch.filter.options());
  kernels::GatedLongConvBackward to;
  to.forward = launch.arguments;
  to.grad_y = grad_y.const_data_ptr<float>(), to.grad_y_stride = grad_y.stride(0);
  to.grad_k = grads[0].mutable_data_ptr<float>(), to.grad_k_stride = grads[0].stride(0);
  to.grad_q = grads[1].mutable_data_ptr<float>(), to.grad_q_stride = grads[1].stride(0);
  to.grad_v = grads[2].mutable_data_ptr<float>(), to.grad_v_stride = grads[2].stride(0);
  to.grad_filter = grad_filter.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table.backward_scratch(to), q);
  require_ok(table.backward(to, scratch.mutable_data_ptr()));
  const at::ScalarType type = q.scalar_type();
  return {grads[1].to(type), grads[0].to(type), grads[2].to(type), grad_filter};
}

Tensor gated_long_conv_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& filter, int64_t length) {
  return forward_reference({q, k, v, filter, length});
}

Tensor gated_long_conv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& filter, int64_t length) {
  return call(GatedLongConv{q, k, v, filter, length});
}

Tensor gated_long_conv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& filter, const std::vector<int64_t>& starts) {
  const std::vector<Run> runs = equal_runs(starts);
  if (runs.size() == 1 && runs[0].length > 0) return gated_long_conv(q, k, v, filter, runs[0].length);
  std::vector<Tensor> pieces;
  for (const Run& run : runs) {
    if (run.length == 0) continue;
    const auto of_run = [&](const Tensor& x) { return x.narrow(0, run.first_token, run.rows * run.length); };
    pieces.push_back(gated_long_conv(of_run(q), of_run(k), of_run(v), filter, run.length));
  }
  return join(pieces, q.sizes(), q.options());
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  define<GatedLongConv>(m)
      .reference<forward_reference>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .autograd<differentiable>();
  define<GatedLongConvBackward>(m).reference<backward_reference>().meta<backward_meta>();
}

}  // namespace
}  // namespace based::ops
