#include "based/kernels/pointwise.h"

#include "based/kernels/cpu/parallel.h"
#include "tests/kernels/buffer.h"

namespace based::kernels {
namespace {

constexpr DType types[] = {DType::f32, DType::bf16};

struct NormCase {
  int64_t rows, width;
  DType x_dtype = DType::f32, dtype = DType::f32;
  bool add = false, keep_sum = false;
};

void check_rms_norm(const NormCase& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.width << ", x bf16 " << (c.x_dtype == DType::bf16) << " y bf16 "
                                  << (c.dtype == DType::bf16) << " add " << c.add << " sum " << c.keep_sum);
  const int64_t n = c.rows * c.width;
  Buffer x(c.x_dtype, random_reals(n, 1, c.x_dtype, 3)), add(c.dtype, random_reals(n, 2, c.dtype));
  Buffer weight(c.dtype, random_reals(c.width, 3, c.dtype));
  Reals s(static_cast<size_t>(n)), expected(s.size()), inverse;
  const double eps = 1e-5;
  for (int64_t row = 0; row < c.rows; ++row) {
    double squares = 0;
    for (int64_t i = 0; i < c.width; ++i) {
      double& value = s[static_cast<size_t>(row * c.width + i)];
      value = x[row * c.width + i] + (c.add ? add[row * c.width + i] : 0);
      if (c.keep_sum) value = rounded(c.x_dtype, value);
      squares += value * value;
    }
    inverse.push_back(1 / std::sqrt(squares / static_cast<double>(c.width) + eps));
    for (int64_t i = 0; i < c.width; ++i) {
      const size_t at = static_cast<size_t>(row * c.width + i);
      expected[at] = s[at] * inverse.back() * weight[i];
    }
  }
  on_every_isa([&] {
    Buffer y(c.dtype, n), inverse_rms(DType::f32, c.rows), sum(c.x_dtype, n);
    RmsNorm p;
    p.x = x.data(), p.weight = weight.data(), p.y = y.data(), p.inverse_rms = inverse_rms.floats();
    if (c.add) p.add = add.data();
    if (c.keep_sum) p.sum = sum.data();
    p.rows = c.rows, p.width = c.width, p.x_dtype = c.x_dtype, p.dtype = c.dtype;
    ASSERT_TRUE(cpu::rms_norm_forward(p).ok());
    expect_close(y.values(), expected, tolerance(c.dtype), "y");
    expect_close(inverse_rms.values(), inverse, 1e-6, "inverse_rms");
    if (c.keep_sum) expect_close(sum.values(), s, c.x_dtype == DType::f32 ? 1e-7 : 0, "sum");
    EXPECT_TRUE(y.guards_intact() && sum.guards_intact() && inverse_rms.guards_intact());
    if (!c.keep_sum) return;
    // The sum may go where x was.
    Buffer in_place = x, again(c.dtype, n);
    p.x = in_place.data(), p.sum = in_place.data(), p.y = again.data();
    ASSERT_TRUE(cpu::rms_norm_forward(p).ok());
    EXPECT_TRUE(again.same_bits(y) && in_place.same_bits(sum));
  });
}

TEST(RmsNorm, AgreesWithDoubles) {
  for (DType x_dtype : types)
    for (DType dtype : types)
      for (int64_t width : {1, 3, 16, 31, 64, 1024})
        for (int64_t rows : {0, 1, 5, 70})
          for (bool add : {false, true}) {
            check_rms_norm({rows, width, x_dtype, dtype, add, false});
            if (add) check_rms_norm({rows, width, x_dtype, dtype, true, true});
          }
}

struct NormGradients {
  Buffer x, weight, add;
  // grad_sum: that the sum has besides, in the memory of grad_add; empty: none, and no grad_add.
  NormGradients(const RmsNorm& forward, Buffer& grad_y, const Reals& grad_sum = {})
      : x(forward.x_dtype, forward.rows * forward.width),
        weight(DType::f32, forward.width),
        add(forward.dtype, grad_sum.empty() ? Reals(static_cast<size_t>(forward.rows * forward.width), std::nan("")) : grad_sum) {
    RmsNormBackward b;
    b.forward = forward;
    b.grad_y = grad_y.data(), b.grad_x = x.data(), b.grad_weight = weight.floats();
    if (!grad_sum.empty()) b.grad_sum = b.grad_add = add.data();
    std::vector<unsigned char> scratch(static_cast<size_t>(cpu::rms_norm_backward_scratch(b)), 0xff);
    const Status status = cpu::rms_norm_backward(b, scratch.data());
    EXPECT_TRUE(status.ok()) << status.what;
  }
};

void check_rms_norm_backward(int64_t rows, int64_t width, DType x_dtype, DType dtype) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << width << ", bf16 " << (x_dtype == DType::bf16) << (dtype == DType::bf16));
  const int64_t n = rows * width;
  Buffer x(x_dtype, random_reals(n, 1, x_dtype)), weight(dtype, random_reals(width, 2, dtype)), y(dtype, n);
  Buffer grad_y(dtype, random_reals(n, 3, dtype));
  Reals grad_x(static_cast<size_t>(n)), grad_weight(static_cast<size_t>(width));
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0, dot = 0;
    for (int64_t i = row * width; i < (row + 1) * width; ++i) squares += x[i] * x[i], dot += grad_y[i] * weight[i - row * width] * x[i];
    const double r = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      grad_x[static_cast<size_t>(i)] = r * grad_y[i] * weight[i - row * width] - x[i] * dot * r * r * r / static_cast<double>(width);
      grad_weight[static_cast<size_t>(i - row * width)] += grad_y[i] * x[i] * r;
    }
  }
  on_every_isa([&] {
    Buffer inverse(DType::f32, rows);
    RmsNorm p;
    p.x = x.data(), p.weight = weight.data(), p.y = y.data(), p.inverse_rms = inverse.floats();
    p.rows = rows, p.width = width, p.x_dtype = x_dtype, p.dtype = dtype;
    ASSERT_TRUE(cpu::rms_norm_forward(p).ok());
    const NormGradients g(p, grad_y);
    expect_close(g.x.values(), grad_x, tolerance(x_dtype), "grad_x");
    expect_close(g.weight.values(), grad_weight, 4e-6, "grad_weight");
    EXPECT_TRUE(g.x.guards_intact() && g.weight.guards_intact());
    if (n > 0) {
      const Reals more = random_reals(n, 4, dtype);
      Reals both = grad_x;
      for (size_t i = 0; i < both.size(); ++i) both[i] += more[i];
      const NormGradients of_sum(p, grad_y, more);
      expect_close(of_sum.x.values(), both, tolerance(x_dtype), "grad_x with grad_sum");
      expect_close(of_sum.add.values(), both, tolerance(dtype), "grad_add");
      EXPECT_TRUE(of_sum.weight.same_bits(g.weight) && of_sum.x.guards_intact() && of_sum.add.guards_intact());
    }
#pragma omp parallel num_threads(2)
    {
#pragma omp single
      {
        const NormGradients one_thread(p, grad_y);
        EXPECT_TRUE(one_thread.x.same_bits(g.x) && one_thread.weight.same_bits(g.weight));
      }
    }
  });
}

TEST(RmsNorm, GradientsAgreeWithDoubles) {
  for (DType x_dtype : types)
    for (DType dtype : types)
      for (int64_t width : {1, 7, 64, 130})
        for (int64_t rows : {0, 1, 15, 17, 1000}) check_rms_norm_backward(rows, width, x_dtype, dtype);
}

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

}  // namespace
}  // namespace based::kernels
