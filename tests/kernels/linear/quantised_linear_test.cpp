#include "based/kernels/linear/quantised_linear.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace quantised_linear_test {

constexpr int64_t kGroup = kInt4Group;

// A layer with random weights, which take all values of the form.
struct Layer {
  WeightForm form;
  int64_t rows, in, out;
  DType dtype;
  bool with_bias;
  std::vector<uint8_t> weight;
  Buffer scale, x, bias;

  Layer(WeightForm f, int64_t r, int64_t i, int64_t o, DType type = DType::f32, bool has_bias = true)
      : form(f),
        rows(r),
        in(i),
        out(o),
        dtype(type),
        with_bias(has_bias),
        weight(static_cast<size_t>(int4() ? o * i / 2 : o * i)),
        scale(int4() ? DType::bf16 : DType::f32, random_reals(int4() ? o * (i / kGroup) : o, 1, int4() ? DType::bf16 : DType::f32,
                                                              (int4() ? 0.2 : 0.015) / std::sqrt(i + 1.0))),
        x(type, random_reals(r * i, 2, type)),
        bias(type, random_reals(o, 3, type)) {
    std::mt19937 random(4);
    for (uint8_t& byte : weight) byte = static_cast<uint8_t>(random());
  }
  bool int4() const { return form == WeightForm::int4; }

  QuantisedLinear parameters(Buffer& y) {
    QuantisedLinear p;
    p.x = x.data(), p.weight = weight.data(), p.scale = scale.data(), p.y = y.data();
    if (with_bias) p.bias = bias.data();
    p.rows = rows, p.in = in, p.out = out;
    p.x_stride = in, p.y_stride = out;
    p.form = form, p.dtype = dtype;
    return p;
  }

  double value(int64_t column, int64_t i) const {
    if (!int4()) return static_cast<int8_t>(weight[static_cast<size_t>(column * in + i)]) * scale[column];
    const uint8_t pair = weight[static_cast<size_t>(column * in / 2 + i / kGroup * (kGroup / 2) + i % (kGroup / 2))];
    const int nibble = i % kGroup < kGroup / 2 ? pair & 15 : pair >> 4;
    return (nibble < 8 ? nibble : nibble - 16) * scale[column * (in / kGroup) + i / kGroup];
  }
  Reals expected() const {
    Reals y;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < out; ++column) {
        double sum = with_bias ? bias[column] : 0;
        for (int64_t i = 0; i < in; ++i) sum += value(column, i) * x[row * in + i];
        y.push_back(sum);
      }
    return y;
  }
};

void check(Layer layer) {
  SCOPED_TRACE(testing::Message() << (layer.int4() ? "int4, " : "int8, ") << layer.rows << " rows, " << layer.in << " in, " << layer.out
                                  << " out, bf16 " << (layer.dtype == DType::bf16) << " bias " << layer.with_bias);
  const Reals expected = layer.expected();
  on_every_isa([&] {
    Buffer y(layer.dtype, layer.rows * layer.out);
    const Status status = cpu::quantised_linear(layer.parameters(y));
    ASSERT_TRUE(status.ok()) << status.what;
    expect_close(y.values(), expected, tolerance(layer.dtype), "y");
    EXPECT_TRUE(y.guards_intact());
  });
}

TEST(QuantisedLinear, AgreesWithDoublesForSizesWithTails) {
  for (const int64_t out : {1, 3, 4, 9, 35})
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 16}) {
      for (const int64_t in : {1, 31, 32, 33, 100, 512}) check({WeightForm::int8, rows, in, out});
      for (const int64_t in : {32, 64, 96, 160, 512}) check({WeightForm::int4, rows, in, out});
    }
}

TEST(QuantisedLinear, AgreesWithDoublesForThreadsAndTypes) {
  for (const WeightForm form : {WeightForm::int8, WeightForm::int4})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool bias : {false, true}) check({form, 3, 1024, 517, dtype, bias});
}

TEST(QuantisedLinear, NothingToSumLeavesTheBias) {
  check({WeightForm::int8, 3, 0, 9});
  check({WeightForm::int4, 3, 0, 9});
  check({WeightForm::int8, 0, 5, 9});
}

TEST(QuantisedLinear, ARowsBitsDoNotDependOnTheOtherRows) {
  for (const WeightForm form : {WeightForm::int8, WeightForm::int4}) {
    Layer layer(form, 17, 544, 37);
    on_every_isa([&] {
      Buffer alone(DType::f32, layer.rows * layer.out);
      for (int64_t row = 0; row < layer.rows; ++row) {
        QuantisedLinear one = layer.parameters(alone);
        one.x = layer.x.floats() + row * layer.in;
        one.y = alone.floats() + row * layer.out;
        one.rows = 1;
        ASSERT_TRUE(cpu::quantised_linear(one).ok());
      }
      for (const int64_t batch : {2, 3, 4, 5, 8, 13, 16, 17}) {
        Buffer together(DType::f32, layer.rows * layer.out);
        QuantisedLinear p = layer.parameters(together);
        p.rows = batch;
        ASSERT_TRUE(cpu::quantised_linear(p).ok());
        EXPECT_EQ(std::memcmp(together.data(), alone.data(), static_cast<size_t>(batch * layer.out) * 4), 0) << batch << " rows";
      }
    });
  }
}

TEST(QuantisedLinear, RefusesWhatItCannotCompute) {
  Layer layer(WeightForm::int4, 2, 64, 8);
  Buffer y(DType::f32, 16);
  QuantisedLinear p = layer.parameters(y);
  p.in = p.x_stride = 48;
  EXPECT_STREQ(cpu::quantised_linear(p).what, "quantised_linear: int4 weights need rows of a multiple of 32");
  p = layer.parameters(y);
  p.scale = nullptr;
  EXPECT_STREQ(cpu::quantised_linear(p).what, "quantised_linear: x, weight, scale and y must be given");
  p = layer.parameters(y);
  p.y_stride = 7;
  EXPECT_STREQ(cpu::quantised_linear(p).what, "quantised_linear: a stride is shorter than its row");
}

}  // namespace quantised_linear_test
}  // namespace based::kernels
