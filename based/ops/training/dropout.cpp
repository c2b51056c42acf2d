#include "based/ops/training/dropout.h"

#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

constexpr const char* kDropoutOp = "dropout";

void check(const Dropout& in) {
  require(at::isFloatingType(in.x.scalar_type()), kDropoutOp, "x must be floating, got ", in.x.scalar_type());
  require(in.p >= 0 && in.p < 1, kDropoutOp, "p must be at least 0 and below 1, got ", in.p);
  require_type(kDropoutOp, "step", in.step, at::kLong);
  require_shape(kDropoutOp, "step", in.step, {});
  require(in.step.device() == in.x.device(), kDropoutOp, "step must be on ", in.x.device(), ", got ", in.step.device());
}

// The number of x's first element: whole tokens come before it.
int64_t first_element(const Dropout& in) {
  return in.first_token == 0 || in.x.numel() == 0 ? 0 : in.first_token * (in.x.numel() / in.x.size(0));
}

// A bit pattern as a signed integer, the type of ATen's integers.
constexpr int64_t bits(uint64_t x) { return static_cast<int64_t>(x); }
constexpr int64_t kGolden = bits(0x9e3779b97f4a7c15u);

// kernels::mixed_bits of each entry, in ATen's signed integers: products wrap, and the copies of the sign that a shift inserts are masked
// out.
Tensor mixed_bits(const Tensor& x) {
  const auto folded = [](const Tensor& t, int64_t shift) {
    return t.bitwise_xor(t.bitwise_right_shift(shift).bitwise_and((int64_t{1} << (64 - shift)) - 1));
  };
  return folded(folded(folded(x, 30) * bits(0xbf58476d1ce4e5b9u), 27) * bits(0x94d049bb133111ebu), 31);
}

Tensor reference(const Dropout& in) {
  check(in);
  const int64_t seed_bits = bits(kernels::mixed_bits(static_cast<uint64_t>(in.seed) + static_cast<uint64_t>(kGolden)));
  const Tensor key = mixed_bits(mixed_bits(in.step + seed_bits) + in.place);
  const int64_t first = first_element(in);
  const Tensor drawn = mixed_bits(at::arange(first, first + in.x.numel(), in.step.options()) * kGolden + key);
  const Tensor dropped = drawn.bitwise_right_shift(32).bitwise_and(0xffffffff) < static_cast<int64_t>(kernels::dropout_threshold(in.p));
  return (in.x.to(sum_type(in.x)) * (1 / (1 - in.p))).masked_fill(dropped.view(in.x.sizes()), 0).to(in.x.scalar_type());
}

Tensor like_x(const Dropout& in) {
  check(in);
  return at::empty(in.x.sizes(), in.x.options());
}

Tensor forward(const Dropout& in) {
  const auto* table = launchers_for<kernels::DropoutLaunchers>(kDropoutOp, in.x);
  if (table == nullptr) return reference(in);
  const Tensor y = like_x(in), x = in.x.contiguous();
  kernels::DropElements to;
  to.x = x.const_data_ptr(), to.y = y.mutable_data_ptr();
  to.step = in.step.const_data_ptr<int64_t>();
  to.count = x.numel(), to.seed = in.seed, to.place = in.place;
  to.threshold = kernels::dropout_threshold(in.p), to.scale = static_cast<float>(1 / (1 - in.p));
  to.dtype = kernel_dtype(x), to.first_element = first_element(in);
  require_ok(table->dropout(to, queue_of(x)));
  return y;
}

// Linear in x: its gradient is the operator itself.
struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Tensor forward(Context* context, const Tensor& x, double p, int64_t seed, const Tensor& step, int64_t place, int64_t first_token) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({step});
    context->saved_data["p"] = p;
    context->saved_data["seed"] = seed;
    context->saved_data["place"] = place;
    context->saved_data["first_token"] = first_token;
    return call(Dropout{x, p, seed, step, place, first_token});
  }

  static Variables backward(Context* context, const Variables& grads) {
    const auto saved = [&](const char* name) { return context->saved_data[name]; };
    const Tensor step = context->get_saved_variables()[0];
    const Dropout out{grads[0], saved("p").toDouble(), saved("seed").toInt(), step, saved("place").toInt(), saved("first_token").toInt()};
    return {call(out), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

Tensor autograd(const Dropout& in) {
  if (wants_gradient({in.x})) return DropoutFunction::apply(in.x, in.p, in.seed, in.step, in.place, in.first_token);
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<Dropout>(m).reference<reference>().named_reference<reference>().meta<like_x>().kernel<forward>().autograd<autograd>();
}

void require_draws(const Draws& draws) {
  require(draws.step.defined(), kDropoutOp, "p > 0 needs the number of the step that it draws for: give draws.step, int64 [], where x is");
}

}  // namespace

Tensor dropout(const Tensor& x, double p, const Draws& draws, int64_t place) {
  if (p == 0) return x;
  require_draws(draws);
  return call(Dropout{x, p, draws.seed, draws.step, place, draws.first_token});
}

Tensor dropout_reference(const Tensor& x, double p, const Draws& draws, int64_t place) {
  require_draws(draws);
  return reference(Dropout{x, p, draws.seed, draws.step, place, draws.first_token});
}

}  // namespace based::ops
