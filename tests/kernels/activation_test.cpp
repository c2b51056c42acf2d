#include "based/kernels/activation.h"

#include "tests/kernels/buffer.h"

namespace based::kernels {
namespace {

double exact(Activation function, double x) {
  switch (function) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::softplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    default: return std::exp(x);
  }
}

constexpr Activation functions[] = {Activation::silu, Activation::sigmoid, Activation::softplus, Activation::exp};

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
            ASSERT_TRUE(cpu::activate({x.data(), y.data(), rows, width, dtype, function}).ok());
            expect_close(y.values(), expected, tolerance(dtype), "y");
            EXPECT_TRUE(y.guards_intact());
            Buffer in_place = x;
            ASSERT_TRUE(cpu::activate({in_place.data(), in_place.data(), rows, width, dtype, function}).ok());
            EXPECT_TRUE(in_place.same_bits(y));
          });
        }
}

// Small results keep their digits, large inputs have the limits, and NaN stays.
TEST(Activate, IsRightAtTheEnds) {
  const Reals inputs = {-80, -30, -9, -1e-6, 0, 1e-6, 9, 30, 80};
  on_every_isa([&] {
    for (const Activation function : functions) {
      Buffer x(DType::f32, inputs), y(DType::f32, static_cast<int64_t>(inputs.size()));
      ASSERT_TRUE(cpu::activate({x.data(), y.data(), 1, static_cast<int64_t>(inputs.size()), DType::f32, function}).ok());
      for (size_t i = 0; i < inputs.size(); ++i) {
        const double expected = exact(function, x[static_cast<int64_t>(i)]);
        EXPECT_NEAR(y[static_cast<int64_t>(i)], expected, 1e-6 * std::abs(expected)) << static_cast<int>(function) << " of " << inputs[i];
      }
      Buffer nan(DType::f32, Reals{std::nan("")});
      ASSERT_TRUE(cpu::activate({nan.data(), nan.data(), 1, 1, DType::f32, function}).ok());
      EXPECT_TRUE(std::isnan(nan[0])) << static_cast<int>(function);
    }
  });
}

TEST(Activate, RefusesWrongArguments) {
  float x = 0;
  EXPECT_FALSE(cpu::activate({&x, &x, -1, 1}).ok());
  EXPECT_FALSE(cpu::activate({nullptr, &x, 1, 1}).ok());
  EXPECT_FALSE(cpu::activate({&x, nullptr, 1, 1}).ok());
  EXPECT_TRUE(cpu::activate({nullptr, nullptr, 0, 1}).ok());
}

}  // namespace
}  // namespace based::kernels
