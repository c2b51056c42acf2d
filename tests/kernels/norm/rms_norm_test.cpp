#include "based/kernels/norm/rms_norm.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace rms_norm_test {

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

}  // namespace rms_norm_test
}  // namespace based::kernels
