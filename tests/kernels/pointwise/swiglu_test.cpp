#include "based/kernels/pointwise/swiglu.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace swiglu_test {

constexpr DType types[] = {DType::f32, DType::bf16};

TEST(Swiglu, ValuesAndGradientsAgreeWithDoubles) {
  for (DType dtype : types)
    for (int64_t width : {0, 1, 15, 16, 50, 2048})
      for (int64_t rows : {0, 1, 6}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << width << " bf16 " << (dtype == DType::bf16));
        Buffer h(dtype, random_reals(rows * 2 * width, 1, dtype, 4)), grad_y(dtype, random_reals(rows * width, 2, dtype));
        Reals y(static_cast<size_t>(rows * width)), grad_h(2 * y.size());
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < width; ++i) {
            const int64_t value = row * 2 * width + i, at = row * width + i;
            const double g = h[value + width], s = 1 / (1 + std::exp(-g));
            y[static_cast<size_t>(at)] = h[value] * g * s;
            grad_h[static_cast<size_t>(value)] = grad_y[at] * g * s;
            grad_h[static_cast<size_t>(value + width)] = grad_y[at] * h[value] * (s + g * s * (1 - s));
          }
        on_every_isa([&] {
          Buffer out(dtype, rows * width), grad(dtype, rows * 2 * width);
          SwigluBackward b;
          b.forward.h = h.data(), b.forward.y = out.data(), b.forward.rows = rows, b.forward.width = width, b.forward.dtype = dtype;
          b.grad_y = grad_y.data(), b.grad_h = grad.data();
          ASSERT_TRUE(cpu::swiglu_forward(b.forward).ok());
          ASSERT_TRUE(cpu::swiglu_backward(b).ok());
          expect_close(out.values(), y, tolerance(dtype), "y");
          expect_close(grad.values(), grad_h, tolerance(dtype), "grad_h");
          EXPECT_TRUE(out.guards_intact() && grad.guards_intact());
        });
      }
}

TEST(Swiglu, SaturatesWithoutNaN) {
  const Reals gates = {-1e30, -200, -89, -88, -87, 0, 87, 88, 89, 200, 1e30};
  const int64_t n = static_cast<int64_t>(gates.size());
  Reals h(gates.size(), 1.0), expected;
  h.insert(h.end(), gates.begin(), gates.end());
  for (double g : gates) expected.push_back(g > 0 ? g : 0);
  on_every_isa([&] {
    Buffer in(DType::f32, h), out(DType::f32, n);
    Swiglu p;
    p.h = in.data(), p.y = out.data(), p.rows = 1, p.width = n;
    ASSERT_TRUE(cpu::swiglu_forward(p).ok());
    for (size_t i = 0; i < gates.size(); ++i) EXPECT_NEAR(out[static_cast<int64_t>(i)], expected[i], 1e-6 * std::abs(expected[i]) + 1e-30);
  });
}

}  // namespace swiglu_test
}  // namespace based::kernels
