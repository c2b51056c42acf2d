#include "based/kernels/pointwise/activation.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace activation_test {

double exact(Activation function, double x) {
  switch (function) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::softplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    case Activation::exp: return std::exp(x);
    case Activation::elu_plus_one: return x > 0 ? x + 1 : std::exp(x);
    default: return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x)));
  }
}

Activate plain(const void* x, void* y, int64_t rows, int64_t width, DType dtype = DType::f32, Activation function = Activation::silu) {
  Activate to;
  to.x = x, to.y = y, to.rows = rows, to.width = to.x_stride = width, to.dtype = to.y_dtype = dtype, to.function = function;
  return to;
}

constexpr Activation functions[] = {Activation::silu, Activation::sigmoid,     Activation::softplus,
                                    Activation::exp,  Activation::log_sigmoid, Activation::elu_plus_one};

TEST(Activate, AgreesWithDoubles) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Activation function : functions)
      for (const int64_t width : {1, 3, 16, 33, 100})
        for (const int64_t rows : {0, 1, 5, 400}) {
          Buffer x(dtype, random_reals(rows * width, 1, dtype, 4));
          Reals expected;
          for (int64_t i = 0; i < rows * width; ++i) expected.push_back(exact(function, x[i]));
          on_every_isa([&] {
            Buffer y(dtype, rows * width);
            ASSERT_TRUE(cpu::activate(plain(x.data(), y.data(), rows, width, dtype, function)).ok());
            expect_close(y.values(), expected, tolerance(dtype), "y");
            EXPECT_TRUE(y.guards_intact());
            Buffer in_place = x;
            ASSERT_TRUE(cpu::activate(plain(in_place.data(), in_place.data(), rows, width, dtype, function)).ok());
            EXPECT_TRUE(in_place.same_bits(y));
          });
        }
}

// y = scale · e^log_rate · f(x + bias) of rows that are not contiguous, for every type, in fp32 arithmetic.
TEST(Activate, TakesFactorsOfColumns) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const DType factors : {DType::f32, DType::bf16})
      for (const int64_t width : {1, 5, 33}) {
        constexpr int64_t rows = 3;
        const int64_t stride = width + 2;
        Buffer x(dtype, random_reals(rows * stride, 1, dtype, 4));
        Buffer bias(factors, random_reals(width, 1, factors, 5)), log_rate(factors, random_reals(width, 1, factors, 6));
        Reals expected;
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < width; ++i)
            expected.push_back(-0.5 * std::exp(log_rate[i]) * exact(Activation::softplus, x[row * stride + i] + bias[i]));
        on_every_isa([&] {
          Buffer y(DType::f32, rows * width);
          Activate p = plain(x.data(), y.data(), rows, width, dtype, Activation::softplus);
          p.x_stride = stride, p.y_dtype = DType::f32, p.factor_dtype = factors, p.scale = -0.5F;
          p.bias = bias.data(), p.log_rate = log_rate.data();
          ASSERT_TRUE(cpu::activate(p).ok());
          expect_close(y.values(), expected, tolerance(DType::f32), "y");
          EXPECT_TRUE(y.guards_intact());
        });
      }
}

// Small results are precise, large inputs give the limits, and NaN stays NaN.
TEST(Activate, IsRightAtTheEnds) {
  const Reals inputs = {-80, -30, -9, -1e-6, 0, 1e-6, 9, 30, 80};
  on_every_isa([&] {
    for (const Activation function : functions) {
      Buffer x(DType::f32, inputs), y(DType::f32, static_cast<int64_t>(inputs.size()));
      ASSERT_TRUE(cpu::activate(plain(x.data(), y.data(), 1, static_cast<int64_t>(inputs.size()), DType::f32, function)).ok());
      for (size_t i = 0; i < inputs.size(); ++i) {
        const double expected = exact(function, x[static_cast<int64_t>(i)]);
        EXPECT_NEAR(y[static_cast<int64_t>(i)], expected, 1e-6 * std::abs(expected)) << static_cast<int>(function) << " of " << inputs[i];
      }
      Buffer nan(DType::f32, Reals{std::nan("")});
      ASSERT_TRUE(cpu::activate(plain(nan.data(), nan.data(), 1, 1, DType::f32, function)).ok());
      EXPECT_TRUE(std::isnan(nan[0])) << static_cast<int>(function);
    }
  });
}

TEST(Activate, RefusesWrongArguments) {
  float x = 0;
  EXPECT_FALSE(cpu::activate(plain(&x, &x, -1, 1)).ok());
  EXPECT_FALSE(cpu::activate(plain(nullptr, &x, 1, 1)).ok());
  EXPECT_FALSE(cpu::activate(plain(&x, nullptr, 1, 1)).ok());
  EXPECT_TRUE(cpu::activate(plain(nullptr, nullptr, 0, 1)).ok());
}

}  // namespace activation_test
}  // namespace based::kernels
