#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "rotary";

void check(const Tensor& x, const Tensor& positions, int64_t dim, double base) {
  require(at::isFloatingType(x.scalar_type()), kOp, "x must be floating, got ", x.scalar_type());
  require_shape(kOp, "x", x, {-1, -1, -1});
  require_type(kOp, "positions", positions, at::kLong);
  require_shape(kOp, "positions", positions, {x.size(0)});
  require(dim >= 0 && dim % 2 == 0 && dim <= std::min<int64_t>(x.size(2), 256), kOp, "dim must be even and at most head_dim and 256, got ",
          dim, " with head_dim ", x.size(2));
  require(base > 0, kOp, "base must be positive, got ", base);
}

Tensor forward_reference(const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
  check(x, positions, dim, base);
  const at::ScalarType type = sum_type(x);
  // In double: a position of 100,000 in fp32 leaves an angle only 3 right digits.
  const Tensor exponent =
      at::arange(dim / 2, positions.options().dtype(at::kDouble)) * (-2.0 / static_cast<double>(std::max<int64_t>(dim, 1)));
  const Tensor angle = positions.to(at::kDouble).unsqueeze(1) * at::pow(base, exponent);  // [tokens, dim / 2]
  const Tensor cosine = angle.cos().to(type).unsqueeze(1), sine = angle.sin().to(type).unsqueeze(1);
  const Tensor turned = x.narrow(2, 0, dim).to(type);
  const Tensor a = interleaved ? turned.slice(2, 0, dim, 2) : turned.narrow(2, 0, dim / 2);
  const Tensor b = interleaved ? turned.slice(2, 1, dim, 2) : turned.narrow(2, dim / 2, dim / 2);
  const Tensor new_a = a * cosine - b * sine, new_b = a * sine + b * cosine;
  const Tensor pairs = interleaved ? at::stack({new_a, new_b}, -1).flatten(2) : at::cat({new_a, new_b}, 2);
  return at::cat({pairs.to(x.scalar_type()), x.narrow(2, dim, x.size(2) - dim)}, 2);
}

Tensor forward_meta(const Tensor& x, const Tensor& positions, int64_t dim, double base, bool) {
  check(x, positions, dim, base);
  return at::empty(x.sizes(), x.options());
}

}  // namespace

Tensor rotary_with(const PointwiseKernels& table, const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
  if (!uses_kernel(kOp, x)) return forward_reference(x, positions, dim, base, interleaved);
  check(x, positions, dim, base);
  const Tensor in = with_packed_heads(x), position = positions.contiguous(), y = at::empty(x.sizes(), x.options());
  kernels::Rotary to;
  to.x = in.const_data_ptr();
  to.y = y.mutable_data_ptr();
  to.position = position.const_data_ptr<int64_t>();
  to.tokens = x.size(0);
  to.x_stride = in.stride(0), to.y_stride = y.stride(0);
  to.heads = static_cast<int32_t>(x.size(1)), to.head_dim = static_cast<int32_t>(x.size(2));
  to.dim = static_cast<int32_t>(dim);
  to.base = base;
  to.interleaved = interleaved;
  to.dtype = kernel_dtype(x);
  require_ok(table.rotary(to));
  return y;
}

namespace {

Tensor forward_cpu(const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
  return rotary_with(kCpuPointwise, x, positions, dim, base, interleaved);
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({positions});
    context->saved_data["dim"] = dim;
    context->saved_data["base"] = base;
    context->saved_data["interleaved"] = interleaved;
    return rotary(x, positions, dim, base, interleaved);
  }

  // A rotation's gradient is the rotation back.
  static Variables backward(Context* context, const Variables& grads) {
    const Tensor positions = context->get_saved_variables()[0];
    return {rotary(grads[0], positions.neg(), context->saved_data["dim"].toInt(), context->saved_data["base"].toDouble(),
                   context->saved_data["interleaved"].toBool()),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor rotary_autograd(const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
  if (wants_gradient({x})) return RotaryFunction::apply(x, positions, dim, base, interleaved);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rotary(x, positions, dim, base, interleaved);
}

}  // namespace

Tensor rotary_reference(const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
  return forward_reference(x, positions, dim, base, interleaved);
}

Tensor rotary(const Tensor& x, const Tensor& positions, int64_t dim, double base, bool interleaved) {
  static const auto op = find_operator<decltype(forward_reference)>("based::rotary");
  return op.call(x, positions, dim, base, interleaved);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("rotary(Tensor x, Tensor positions, int dim, float base, bool interleaved) -> Tensor");
  m.def("rotary_reference(Tensor x, Tensor positions, int dim, float base, bool interleaved) -> Tensor", rotary_reference);
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) { m.impl("rotary", forward_reference); }
TORCH_LIBRARY_IMPL(based, CPU, m) { m.impl("rotary", forward_cpu); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("rotary", forward_meta); }
TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("rotary", rotary_autograd); }

}  // namespace
}  // namespace based::ops
