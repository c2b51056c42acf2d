#include "based/ops/attention/rotary.h"

#include "based/kernels/attention/rotary.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

// Whether x may be written in place: its columns are contiguous and its rows do not overlap.
bool can_be_written(const Tensor& x) { return x.numel() == 0 || (x.stride(1) == 1 && (x.size(0) == 1 || x.stride(0) >= x.size(1))); }

void check(const Rotary& in) {
  constexpr const char* op = "rotary_";
  const auto& [x, positions, r] = in;
  require(at::isFloatingType(x.scalar_type()), op, "x must be floating, got ", x.scalar_type());
  require_shape(op, "x", x, {-1, -1});
  require(r.heads >= 1 && r.head_dim >= 1 && r.heads <= x.size(1) / r.head_dim, op, "x must have ", r.heads, " heads of ", r.head_dim,
          " columns, got ", x.size(1), " columns");
  require(can_be_written(x), op, "columns of x must lie side by side, and its rows apart");
  require_type(op, "positions", positions, at::kLong);
  require_shape(op, "positions", positions, {x.size(0)});
  require(r.dim >= 0 && r.dim % 2 == 0 && r.dim <= std::min<int64_t>(r.head_dim, 256), op,
          "dim must be even and at most head_dim and 256, got ", r.dim, " with head_dim ", r.head_dim);
  require(r.base > 0, op, "base must be positive, got ", r.base);
}

Tensor rotated(const Rotary& in) {
  check(in);
  const auto& [x, positions, r] = in;
  const int64_t dim = r.dim;
  const at::ScalarType type = sum_type(x);
  // In double: a position of 100,000 in fp32 leaves an angle only 3 right digits.
  const Tensor exponent =
      at::arange(dim / 2, positions.options().dtype(at::kDouble)) * (-2.0 / static_cast<double>(std::max<int64_t>(dim, 1)));
  const Tensor angle = positions.to(at::kDouble).unsqueeze(1) * at::pow(r.base, exponent);  // [tokens, dim / 2]
  const Tensor cosine = angle.cos().to(type).unsqueeze(1), sine = (r.inverse ? -angle.sin() : angle.sin()).to(type).unsqueeze(1);
  const Tensor heads = x.narrow(1, 0, r.heads * r.head_dim).reshape({x.size(0), r.heads, r.head_dim});
  const Tensor pairs = heads.narrow(2, 0, dim).to(type);
  const Tensor a = r.interleaved ? pairs.slice(2, 0, dim, 2) : pairs.narrow(2, 0, dim / 2);
  const Tensor b = r.interleaved ? pairs.slice(2, 1, dim, 2) : pairs.narrow(2, dim / 2, dim / 2);
  const Tensor new_a = a * cosine - b * sine, new_b = a * sine + b * cosine;
  const Tensor both = r.interleaved ? at::stack({new_a, new_b}, -1).flatten(2) : at::cat({new_a, new_b}, 2);
  const Tensor rotated_heads = at::cat({both.to(x.scalar_type()), heads.narrow(2, dim, r.head_dim - dim)}, 2);
  return at::cat({rotated_heads.flatten(1), x.narrow(1, r.heads * r.head_dim, x.size(1) - r.heads * r.head_dim)}, 1);
}

void rotate(const Rotary& in) {
  const auto& [x, positions, rotation] = in;
  const auto* table = launchers_for<kernels::RotaryLaunchers>("rotary_", x);
  if (table == nullptr) {
    x.copy_(rotated(in));
    return;
  }
  check(in);
  const Tensor position = positions.contiguous();
  kernels::Rotary to;
  to.x = to.y = x.mutable_data_ptr();
  to.position = position.const_data_ptr<int64_t>();
  to.tokens = x.size(0);
  to.x_stride = to.y_stride = x.stride(0);
  to.heads = static_cast<int32_t>(rotation.heads), to.head_dim = static_cast<int32_t>(rotation.head_dim);
  to.dim = static_cast<int32_t>(rotation.dim);
  to.base = rotation.base;
  to.interleaved = rotation.interleaved, to.inverse = rotation.inverse;
  to.dtype = kernel_dtype(x);
  require_ok(table->rotate(to, queue_of(x)));
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, const Tensor& positions, const Rotation& rotation) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({positions});
    context->saved_data["heads"] = rotation.heads, context->saved_data["head_dim"] = rotation.head_dim;
    context->saved_data["dim"] = rotation.dim, context->saved_data["base"] = rotation.base;
    context->saved_data["interleaved"] = rotation.interleaved, context->saved_data["inverse"] = rotation.inverse;
    call(Rotary{x, positions, rotation});
    context->mark_dirty({x});
    return x;
  }

  // The gradient of a rotation is the inverse rotation. It is written in place where this function alone owns the gradient.
  static Variables backward(Context* context, const Variables& grads) {
    auto& saved = context->saved_data;
    const Rotation back{saved["heads"].toInt(),   saved["head_dim"].toInt(),     saved["dim"].toInt(),
                        saved["base"].toDouble(), saved["interleaved"].toBool(), !saved["inverse"].toBool()};
    const Tensor grad = is_sole_owner(grads[0]) && can_be_written(grads[0]) ? grads[0] : grads[0].clone(at::MemoryFormat::Contiguous);
    call(Rotary{grad, context->get_saved_variables()[0], back});
    return {grad, Tensor(), Tensor()};
  }
};

void rotary_autograd(const Rotary& in) {
  if (wants_gradient({in.x})) {
    RotaryFunction::apply(in.x, in.positions, in.rotation);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  call(in);
}

Result<Rotary> rotary_reference(const Rotary& in) { in.x.copy_(rotated(in)); }

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<Rotary>(m).reference<rotary_reference>().meta<check>().kernel<rotate>().autograd<rotary_autograd>();
}

}  // namespace

Tensor rotary_reference(const Tensor& x, const Tensor& positions, const Rotation& rotation) { return rotated({x, positions, rotation}); }

Tensor rotary_(Tensor x, const Tensor& positions, const Rotation& rotation) {
  call(Rotary{x, positions, rotation});
  return x;
}

}  // namespace based::ops
