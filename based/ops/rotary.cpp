#include "based/ops/arguments.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "rotary_";

// Columns side by side, and no row over another: what may be written in place.
bool can_be_written(const Tensor& x) { return x.numel() == 0 || (x.stride(1) == 1 && (x.size(0) == 1 || x.stride(0) >= x.size(1))); }

void check(const Tensor& x, const Tensor& positions, const Rotation& r) {
  require(at::isFloatingType(x.scalar_type()), kOp, "x must be floating, got ", x.scalar_type());
  require_shape(kOp, "x", x, {-1, -1});
  require(r.heads >= 1 && r.head_dim >= 1 && r.heads <= x.size(1) / r.head_dim, kOp, "x must have ", r.heads, " heads of ", r.head_dim,
          " columns, got ", x.size(1), " columns");
  require(can_be_written(x), kOp, "columns of x must lie side by side, and its rows apart");
  require_type(kOp, "positions", positions, at::kLong);
  require_shape(kOp, "positions", positions, {x.size(0)});
  require(r.dim >= 0 && r.dim % 2 == 0 && r.dim <= std::min<int64_t>(r.head_dim, 256), kOp,
          "dim must be even and at most head_dim and 256, got ", r.dim, " with head_dim ", r.head_dim);
  require(r.base > 0, kOp, "base must be positive, got ", r.base);
}

Tensor turned(const Tensor& x, const Tensor& positions, const Rotation& r) {
  check(x, positions, r);
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
  const Tensor turned_heads = at::cat({both.to(x.scalar_type()), heads.narrow(2, dim, r.head_dim - dim)}, 2);
  return at::cat({turned_heads.flatten(1), x.narrow(1, r.heads * r.head_dim, x.size(1) - r.heads * r.head_dim)}, 1);
}

// As the schema has it.
void turn_reference(Tensor x, const Tensor& positions, int64_t heads, int64_t head_dim, int64_t dim, double base, bool interleaved,
                    bool inverse) {
  x.copy_(turned(x, positions, {heads, head_dim, dim, base, interleaved, inverse}));
}

void turn_meta(Tensor x, const Tensor& positions, int64_t heads, int64_t head_dim, int64_t dim, double base, bool interleaved,
               bool inverse) {
  check(x, positions, {heads, head_dim, dim, base, interleaved, inverse});
}

void turn(Tensor x, const Tensor& positions, const Rotation& r) {
  static const auto op = find_operator<decltype(turn_reference)>("based::rotary_");
  op.call(x, positions, r.heads, r.head_dim, r.dim, r.base, r.interleaved, r.inverse);
}

}  // namespace

void rotary_with(const PointwiseKernels& table, Tensor x, const Tensor& positions, const Rotation& rotation) {
  check(x, positions, rotation);
  if (!uses_kernel(kOp, x)) {
    x.copy_(turned(x, positions, rotation));
    return;
  }
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
  require_ok(table.rotary(to));
}

namespace {

void turn_cpu(Tensor x, const Tensor& positions, int64_t heads, int64_t head_dim, int64_t dim, double base, bool interleaved,
              bool inverse) {
  rotary_with(kCpuPointwise, std::move(x), positions, {heads, head_dim, dim, base, interleaved, inverse});
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
    turn(x, positions, rotation);
    context->mark_dirty({x});
    return x;
  }

  // A rotation's gradient is the rotation back, in the same memory where the gradient is this function's alone.
  static Variables backward(Context* context, const Variables& grads) {
    auto& saved = context->saved_data;
    const Rotation back{saved["heads"].toInt(),   saved["head_dim"].toInt(),     saved["dim"].toInt(),
                        saved["base"].toDouble(), saved["interleaved"].toBool(), !saved["inverse"].toBool()};
    const Tensor grad = is_sole_owner(grads[0]) && can_be_written(grads[0]) ? grads[0] : grads[0].clone(at::MemoryFormat::Contiguous);
    turn(grad, context->get_saved_variables()[0], back);
    return {grad, Tensor(), Tensor()};
  }
};

void turn_autograd(Tensor x, const Tensor& positions, int64_t heads, int64_t head_dim, int64_t dim, double base, bool interleaved,
                   bool inverse) {
  const Rotation rotation{heads, head_dim, dim, base, interleaved, inverse};
  if (wants_gradient({x})) {
    RotaryFunction::apply(x, positions, rotation);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  turn(std::move(x), positions, rotation);
}

}  // namespace

Tensor rotary_reference(const Tensor& x, const Tensor& positions, const Rotation& rotation) { return turned(x, positions, rotation); }

Tensor rotary_(Tensor x, const Tensor& positions, const Rotation& rotation) {
  turn(x, positions, rotation);
  return x;
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("rotary_(Tensor(a!) x, Tensor positions, int heads, int head_dim, int dim, float base, bool interleaved, bool inverse) -> ()");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) { m.impl("rotary_", turn_reference); }
TORCH_LIBRARY_IMPL(based, CPU, m) { m.impl("rotary_", turn_cpu); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("rotary_", turn_meta); }
TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("rotary_", turn_autograd); }

}  // namespace
}  // namespace based::ops
