#include "based/kernels/attention/rotary.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace rotary_test {

constexpr DType types[] = {DType::f32, DType::bf16};

struct RotaryCase {
  int64_t tokens;
  int32_t heads, head_dim, dim;
  bool interleaved = false;
  DType dtype = DType::f32;
  int64_t padding = 0;
  double base = 10000;
};

void check_rotary(const RotaryCase& c) {
  SCOPED_TRACE(testing::Message() << c.tokens << " tokens, head_dim " << c.head_dim << " dim " << c.dim << " interleaved "
                                  << c.interleaved);
  const int64_t width = c.heads * c.head_dim, stride = width + c.padding, half = c.dim / 2;
  Buffer x(c.dtype, random_reals(c.tokens * stride, 1, c.dtype));
  std::vector<int64_t> position;
  for (int64_t t = 0; t < c.tokens; ++t) position.push_back(t < 4 ? t : t * 7919 * (t % 3 == 0 ? 1000 : 1));
  Reals expected(static_cast<size_t>(c.tokens * width));
  for (int64_t t = 0; t < c.tokens; ++t)
    for (int64_t head = 0; head < c.heads; ++head)
      for (int64_t i = 0; i < c.head_dim; ++i) {
        const int64_t at = t * stride + head * c.head_dim;
        double& y = expected[static_cast<size_t>(t * width + head * c.head_dim + i)];
        if (i >= c.dim) {
          y = x[at + i];
          continue;
        }
        const int64_t pair = c.interleaved ? i / 2 : i % half;
        const bool second = c.interleaved ? i % 2 == 1 : i >= half;
        const double a = x[at + (c.interleaved ? 2 * pair : pair)], b = x[at + (c.interleaved ? 2 * pair + 1 : pair + half)];
        const long double exact = static_cast<long double>(position[static_cast<size_t>(t)]) *
                                  std::pow(static_cast<long double>(c.base), -2.0L * static_cast<long double>(pair) / c.dim);
        const double cosine = static_cast<double>(std::cos(exact)), sine = static_cast<double>(std::sin(exact));
        y = second ? a * sine + b * cosine : a * cosine - b * sine;
      }
  on_every_isa([&] {
    Buffer y(c.dtype, c.tokens * width);
    Rotary p;
    p.x = x.data(), p.y = y.data(), p.position = position.data(), p.tokens = c.tokens, p.x_stride = stride, p.y_stride = width;
    p.heads = c.heads, p.head_dim = c.head_dim, p.dim = c.dim, p.base = c.base, p.interleaved = c.interleaved, p.dtype = c.dtype;
    Status status = cpu::rotary(p);
    ASSERT_TRUE(status.ok()) << status.what;
    expect_close(y.values(), expected, tolerance(c.dtype), "y");
    EXPECT_TRUE(y.guards_intact());
    Buffer in_place = x;
    p.x = p.y = in_place.data(), p.y_stride = stride;
    ASSERT_TRUE(cpu::rotary(p).ok());
    for (int64_t t = 0; t < c.tokens; ++t)
      for (int64_t i = 0; i < width; ++i) EXPECT_EQ(in_place[t * stride + i], y[t * width + i]);
    p.inverse = true;
    ASSERT_TRUE(cpu::rotary(p).ok());
    expect_close(in_place.values(), x.values(), 2 * tolerance(c.dtype), "rotated back");
  });
}

TEST(Rotary, AgreesWithLongDoublesAtAnyPosition) {
  for (DType dtype : types)
    for (bool interleaved : {false, true}) {
      for (int32_t dim : {2, 6, 8, 32, 34, 64, 128, 256}) check_rotary({9, 2, dim, dim, interleaved, dtype, 0});
      check_rotary({40, 3, 70, 36, interleaved, dtype, 5, 500000});
      check_rotary({3, 1, 9, 0, interleaved, dtype});
      check_rotary({0, 1, 8, 8, interleaved, dtype});
      check_rotary({200, 16, 64, 64, interleaved, dtype});
    }
}

TEST(Rotary, RefusesWhatItCannotCompute) {
  Rotary p;
  p.heads = 1, p.dim = 3;
  EXPECT_STREQ(cpu::rotary(p).what, "rotary: dim must be even, at most head_dim and at most 256");
  p.dim = 66;
  EXPECT_FALSE(cpu::rotary(p).ok());
  p.dim = 64, p.tokens = 1;
  EXPECT_STREQ(cpu::rotary(p).what, "rotary: x, y and position must be given");
}

}  // namespace rotary_test
}  // namespace based::kernels
