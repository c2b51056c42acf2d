#include "based/ops/conv/gated_long_conv.h"

#include "based/ops/conv/gated_long_conv_scores.h"
#include "based/ops/conv/long_conv.h"
#include "based/ops/conv/long_conv_arguments.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "based/ops/framework/recompute.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear/split_columns.h"

namespace based::ops {
namespace {

using kernels::GatedLongConvLaunchers;

void check(const GatedLongConv& in) { check_gated_long_conv(in); }

Tensor forward_reference(const GatedLongConv& in) {
  check(in);
  const auto& [k, filter, q, v, length] = in;
  const int64_t heads = filter.size(0), head_dim = k.size(1) / heads, tokens = k.size(0);
  const auto by_head = [&, &like = filter](const Tensor& x) { return x.to(like.scalar_type()).unflatten(1, {heads, head_dim}); };
  Tensor products = by_head(k).unsqueeze(3);
  if (v) products = products * by_head(*v).unsqueeze(2);
  products = products.reshape({tokens / length, length, heads * head_dim * head_dim});
  Tensor sums = long_conv_of_batch(products, filter.repeat_interleave(head_dim * head_dim, 0));
  sums = sums.reshape({tokens, heads, head_dim, head_dim});
  if (q) sums = by_head(*q).unsqueeze(3) * sums;
  return sums.sum(2).flatten(1).to(k.scalar_type());
}

Result<GatedLongConvBackward> backward_reference(const GatedLongConvBackward& in) {
  const auto& [k, filter, q, v, length] = in.forward;
  const auto found = gradients_by_autograd(
      [length = length](const std::vector<Tensor>& t) {
        return std::vector<Tensor>{forward_reference(GatedLongConv{t[0], t[1], if_defined(t[2]), if_defined(t[3]), length})};
      },
      {k, filter, value_or_undefined(q), value_or_undefined(v)}, {in.grad_y});
  return {found[0], found[1], found[2], found[3]};
}

Tensor forward_without_kernel(const GatedLongConv& in) {
  check(in);
  return has_short_scores(in) ? gated_long_conv_by_scores(in) : forward_reference(in);
}
Result<GatedLongConvBackward> backward_without_kernel(const GatedLongConvBackward& in) {
  check(in.forward);
  return has_short_scores(in.forward) ? gated_long_conv_backward_by_scores(in) : backward_reference(in);
}

Tensor forward_meta(const GatedLongConv& in) {
  check(in);
  return at::empty(in.k.sizes(), in.k.options());
}
Result<GatedLongConvBackward> backward_meta(const GatedLongConvBackward& in) {
  check(in.forward);
  const auto& [k, filter, q, v, length] = in.forward;
  const auto like = [](const Tensor& x) { return at::empty(x.sizes(), x.options()); };
  return {like(k), like(filter), q ? like(*q) : Tensor(), v ? like(*v) : Tensor()};
}

// On the CPU, where there is no kernel, ATen differentiates the convolutions: another run of the forward would cost a third.
Tensor differentiable(const GatedLongConv& in) {
  check(in);
  if (in.k.is_cpu() && !has_short_scores(in)) return forward_reference(in);
  return call_with_gradient<GatedLongConv, GatedLongConv, GatedLongConvBackward, forward_reference>(in);
}

// A launch's arguments and the tensors that own their memory.
struct GatedLongConvLaunch {
  Tensor k, filter;
  OptionalTensor q, v;
  kernels::GatedLongConv arguments;
};

Tensor in_fp32(const Tensor& x) { return with_unit_columns(x.to(at::kFloat)); }
OptionalTensor in_fp32(const OptionalTensor& x) { return x ? OptionalTensor(in_fp32(*x)) : std::nullopt; }

GatedLongConvLaunch prepare(const GatedLongConv& in) {
  GatedLongConvLaunch launch{in_fp32(in.k), in.filter.contiguous(), in_fp32(in.q), in_fp32(in.v), {}};
  launch.arguments = gated_long_conv_arguments(GatedLongConv{launch.k, launch.filter, launch.q, launch.v, in.length});
  launch.arguments.single_tf32 = takes_one_tf32_part(in.k, at::globalContext().allowTF32CuBLAS());
  return launch;
}

// Memory for the gradients of k, q and v. Where these are the columns of one tensor, so are the gradients.
std::vector<Tensor> empty_gradients(const GatedLongConvLaunch& launch) {
  const Tensor& k = launch.k;
  if (launch.q && launch.v && joined_columns({k, *launch.q, *launch.v}))
    return at::empty({k.size(0), 3 * k.size(1)}, k.options()).split(k.size(1), 1);
  const auto like_if = [&](bool given) { return given ? at::empty(k.sizes(), k.options()) : Tensor(); };
  return {like_if(true), like_if(launch.q.has_value()), like_if(launch.v.has_value())};
}

Tensor forward(const GatedLongConv& in) {
  check(in);
  const GatedLongConvLaunchers* table = launchers_of<GatedLongConvLaunchers>(in.k);
  if (table == nullptr) return forward_without_kernel(in);
  GatedLongConvLaunch launch = prepare(in);
  if (!uses_kernel("gated_long_conv", in.k, table->supports(launch.arguments))) return forward_without_kernel(in);
  const Tensor y = at::empty(in.k.sizes(), launch.k.options());
  launch.arguments.y = y.mutable_data_ptr<float>();
  require_ok(table->forward(launch.arguments, queue_of(in.k)));
  return y.to(in.k.scalar_type());
}

Result<GatedLongConvBackward> backward(const GatedLongConvBackward& in) {
  check(in.forward);
  const Tensor& k = in.forward.k;
  const GatedLongConvLaunchers* table = launchers_of<GatedLongConvLaunchers>(k);
  if (table == nullptr) return backward_without_kernel(in);
  const GatedLongConvLaunch launch = prepare(in.forward);
  if (!uses_kernel("gated_long_conv_backward", k, table->backward_supports(launch.arguments))) return backward_without_kernel(in);
  const std::vector<Tensor> grads = empty_gradients(launch);
  const Tensor grad_y = in.grad_y.to(at::kFloat).contiguous(), grad_filter = at::empty(launch.filter.sizes(), launch.filter.options());
  kernels::GatedLongConvBackward to;
  to.forward = launch.arguments;
  to.grad_y = grad_y.const_data_ptr<float>(), to.grad_y_stride = grad_y.stride(0);
  to.grad_k = grads[0].mutable_data_ptr<float>(), to.grad_k_stride = grads[0].stride(0);
  if (grads[1].defined()) to.grad_q = grads[1].mutable_data_ptr<float>(), to.grad_q_stride = grads[1].stride(0);
  if (grads[2].defined()) to.grad_v = grads[2].mutable_data_ptr<float>(), to.grad_v_stride = grads[2].stride(0);
  to.grad_filter = grad_filter.mutable_data_ptr<float>();
  const Tensor scratch = scratch_memory(table->backward_scratch(to), launch.k);
  require_ok(table->backward(to, scratch.mutable_data_ptr(), queue_of(k)));
  const auto typed = [&](const Tensor& x) { return x.defined() ? x.to(k.scalar_type()) : Tensor(); };
  return {typed(grads[0]), grad_filter, typed(grads[1]), typed(grads[2])};
}

}  // namespace

Tensor gated_long_conv_reference(const OptionalTensor& q, const Tensor& k, const OptionalTensor& v, const Tensor& filter, int64_t length) {
  return forward_reference(GatedLongConv{k, filter, q, v, length});
}

Tensor gated_long_conv(const OptionalTensor& q, const Tensor& k, const OptionalTensor& v, const Tensor& filter, int64_t length) {
  return call(GatedLongConv{k, filter, q, v, length});
}

Tensor gated_long_conv(const OptionalTensor& q, const Tensor& k, const OptionalTensor& v, const Tensor& filter,
                       const std::vector<int64_t>& starts) {
  const std::vector<Run> runs = equal_runs(starts);
  if (runs.size() == 1 && runs[0].length > 0) return gated_long_conv(q, k, v, filter, runs[0].length);
  std::vector<Tensor> pieces;
  for (const Run& run : runs) {
    if (run.length == 0) continue;
    const auto of_run = [&](const Tensor& x) { return x.narrow(0, run.first_token, run.rows * run.length); };
    const auto if_given = [&](const OptionalTensor& x) { return x ? OptionalTensor(of_run(*x)) : std::nullopt; };
    pieces.push_back(gated_long_conv(if_given(q), of_run(k), if_given(v), filter, run.length));
  }
  return join(pieces, k.sizes(), k.options());
}

namespace {

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<GatedLongConv>(m)
      .reference<forward_without_kernel>()
      .named_reference<forward_reference>()
      .meta<forward_meta>()
      .kernel<forward>()
      .autograd<differentiable>();
  define<GatedLongConvBackward>(m).reference<backward_without_kernel>().meta<backward_meta>().kernel<backward>();
}

}  // namespace
}  // namespace based::ops
