#include "based/kernels/linear/linear.h"

#include "based/kernels/common/cpu/parallel.h"
#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace linear_test {

struct Case {
  int64_t rows, in, out;
  DType dtype = DType::f32, y_dtype = DType::f32;
  bool bias = false, accumulate = false;
  int64_t padding = 0;  // extra elements per row in memory
};

struct Layer {
  Case c;
  Buffer x, weight, bias;
  Reals before;

  explicit Layer(const Case& k)
      : c(k),
        x(k.dtype, padded(k.rows, k.in, k.padding, k.dtype, 1)),
        weight(k.dtype, padded(k.out, k.in, k.padding, k.dtype, 2, 1 / std::sqrt(k.in + 1.0))),
        bias(k.dtype, random_reals(k.out, 3, k.dtype)),
        before(padded(k.rows, k.out, k.padding, k.y_dtype, 4)) {}

  // Padding columns are NaN, so that a kernel that reads them gives NaN.
  static Reals padded(int64_t rows, int64_t columns, int64_t padding, DType dtype, unsigned seed, double scale = 1) {
    Reals values = random_reals(rows * (columns + padding), seed, dtype, scale);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < padding; ++i) values[static_cast<size_t>(r * (columns + padding) + columns + i)] = std::nan("");
    return values;
  }

  Linear parameters(Buffer& y) {
    Linear p;
    p.x = x.data(), p.weight = weight.data(), p.y = y.data();
    if (c.bias) p.bias = bias.data();
    p.rows = c.rows, p.in = c.in, p.out = c.out;
    p.x_stride = p.weight_stride = c.in + c.padding, p.y_stride = c.out + c.padding;
    p.dtype = c.dtype, p.y_dtype = c.y_dtype, p.accumulate = c.accumulate;
    return p;
  }
  Buffer start() const { return c.accumulate ? Buffer(c.y_dtype, before) : Buffer(c.y_dtype, c.rows * (c.out + c.padding)); }

  double expected(int64_t row, int64_t column) const {
    double sum = c.bias ? bias[column] : 0;
    for (int64_t i = 0; i < c.in; ++i) sum += x[row * (c.in + c.padding) + i] * weight[column * (c.in + c.padding) + i];
    return c.accumulate ? sum + before[static_cast<size_t>(row * (c.out + c.padding) + column)] : sum;
  }
};

void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.in << " in, " << c.out << " out, bf16 " << (c.dtype == DType::bf16)
                                  << (c.y_dtype == DType::bf16) << " bias " << c.bias << " accumulate " << c.accumulate);
  Layer layer(c);
  Reals expected;
  for (int64_t row = 0; row < c.rows; ++row)
    for (int64_t column = 0; column < c.out; ++column) expected.push_back(layer.expected(row, column));
  on_every_isa([&] {
    Buffer y = layer.start();
    const Status status = cpu::linear(layer.parameters(y));
    ASSERT_TRUE(status.ok()) << status.what;
    Reals got;
    for (int64_t row = 0; row < c.rows; ++row)
      for (int64_t column = 0; column < c.out; ++column) got.push_back(y[row * (c.out + c.padding) + column]);
    expect_close(got, expected, tolerance(c.y_dtype), "y");
    EXPECT_TRUE(y.guards_intact());
    for (int64_t row = 0; row < c.rows && !c.accumulate; ++row)
      for (int64_t i = 0; i < c.padding; ++i) EXPECT_TRUE(std::isnan(y[row * (c.out + c.padding) + c.out + i])) << "padding written";
  });
}

TEST(Linear, AgreesWithDoublesForSizesWithTails) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t in : {1, 2, 31, 32, 33, 511, 512, 513, 1100})
      for (int64_t out : {1, 7, 8, 9, 35})
        for (int64_t rows : {1, 2, 3, 4, 5, 7}) check({rows, in, out, dtype, DType::f32});
}

TEST(Linear, AgreesWithDoublesForManyRowsThreadsAndTypes) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (DType y_dtype : {DType::f32, DType::bf16})
      for (bool bias : {false, true})
        for (bool accumulate : {false, true}) {
          check({16, 300, 530, dtype, y_dtype, bias, accumulate, 3});
          check({1, 1024, 515, dtype, y_dtype, bias, accumulate, 0});
          check({130, 70, 17, dtype, y_dtype, bias, accumulate, 1});
        }
}

TEST(Linear, NothingToSumLeavesTheBias) {
  for (bool accumulate : {false, true}) check({3, 0, 9, DType::f32, DType::f32, true, accumulate});
  check({0, 5, 9});
  check({2, 5, 0});
}

TEST(Linear, ARowsBitsDoNotDependOnTheOtherRowsNorOnTheThreads) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t in : {1024, 1037, 2048}) {
      const int64_t out = 261, rows = 67;
      Layer layer({rows, in, out, dtype, DType::f32, true});
      on_every_isa([&] {
        Buffer alone = layer.start();
        for (int64_t row = 0; row < rows; ++row) {
          Linear one = layer.parameters(alone);
          one.x = static_cast<char*>(layer.x.data()) + row * in * dtype_size(dtype);
          one.y = alone.floats() + row * out;
          one.rows = 1;
          ASSERT_TRUE(cpu::linear(one).ok());
        }
        for (int64_t batch : {2, 3, 4, 5, 8, 13, 16, 17, 64, 67}) {
          Buffer together = layer.start();
          Linear p = layer.parameters(together);
          p.rows = batch;
          ASSERT_TRUE(cpu::linear(p).ok());
          EXPECT_EQ(std::memcmp(together.data(), alone.data(), static_cast<size_t>(batch * out) * 4), 0) << batch << " rows";
        }
        Buffer one_thread = layer.start();
        // Inside a parallel region a kernel uses only the calling thread.
#pragma omp parallel num_threads(2)
        {
#pragma omp single
          EXPECT_TRUE(cpu::linear(layer.parameters(one_thread)).ok());
        }
        EXPECT_TRUE(one_thread.same_bits(alone));
      });
    }
}

TEST(Linear, RefusesWhatItCannotCompute) {
  Layer layer({2, 8, 8});
  Buffer y = layer.start();
  Linear p = layer.parameters(y);
  p.weight = nullptr;
  EXPECT_STREQ(cpu::linear(p).what, "linear: x, weight and y must be given");
  p = layer.parameters(y);
  p.y_stride = 7;
  EXPECT_STREQ(cpu::linear(p).what, "linear: a stride is shorter than its row");
  p = layer.parameters(y);
  p.rows = -1;
  EXPECT_FALSE(cpu::linear(p).ok());
}

}  // namespace linear_test
}  // namespace based::kernels
