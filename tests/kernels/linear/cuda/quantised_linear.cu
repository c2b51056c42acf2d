// The int8 linear layer against sums in double precision.
#include "based/kernels/linear/quantised_linear.h"

#include <cstring>
#include <random>

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

struct Ints {
  std::vector<int8_t> values;
  Buffer memory;
};
Ints random_ints(int64_t count) {
  std::mt19937_64 random(7);
  std::vector<int64_t> words((count + 7) / 8);
  for (int64_t& word : words) word = static_cast<int64_t>(random());
  Ints ints{std::vector<int8_t>(count), upload(words)};
  std::memcpy(ints.values.data(), words.data(), count);
  return ints;
}

struct Size {
  int64_t rows, in, out;
  bool gated = false, with_bias = true;
};

// Rows of x and y have gaps. Returns y.
std::vector<double> verify_one(Report& report, const Size& s, DType dtype) {
  const int64_t x_stride = s.in + 16, width = s.gated ? s.out / 2 : s.out, y_stride = width + 4;
  const Ints weight = random_ints(s.out * s.in);
  const Buffer x = random_buffer(s.rows * x_stride, dtype, 1, 1), scale = random_buffer(s.out, DType::f32, 0.01, 2),
               bias = random_buffer(s.out, dtype, 1, 3);
  Buffer y(s.rows * y_stride * 4);
  kernels::QuantisedLinear p;
  p.x = x.as(), p.weight = weight.memory.as(), p.scale = scale.as(), p.bias = s.with_bias ? bias.as() : nullptr, p.y = y.as();
  p.rows = s.rows, p.in = s.in, p.out = s.out, p.x_stride = x_stride, p.y_stride = y_stride;
  p.dtype = dtype, p.gated = s.gated, p.weight_is_constant = s.rows % 2 == 0;
  const std::string name = "quantised_linear " + std::to_string(s.rows) + " x " + std::to_string(s.in) + " -> " + std::to_string(s.out) +
                           (s.gated ? " gated" : "") + type_name(dtype);
  check(gpu::quantised_linear(p, {}));
  const std::vector<double> numbers = download(p.x, dtype, s.rows * x_stride), scales = download(p.scale, DType::f32, s.out),
                            offsets = download(bias.as(), dtype, s.out), got = download(p.y, dtype, s.rows * y_stride);
  const auto output = [&](int64_t row, int64_t out) {
    double sum = 0;
    for (int64_t i = 0; i < s.in; ++i) sum += numbers[row * x_stride + i] * weight.values[out * s.in + i];
    return sum * scales[out] + (s.with_bias ? offsets[out] : 0);
  };
  std::vector<double> values, exact;
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t out = 0; out < width; ++out) {
      const double value = output(row, out), gate = s.gated ? output(row, out + width) : 0;
      exact.push_back(s.gated ? value * gate * sigmoid(gate) : value);
      values.push_back(got[row * y_stride + out]);
    }
    for (int64_t out = width; out < y_stride; ++out)
      if (!std::isnan(got[row * y_stride + out])) report.fail(name + ": wrote beyond a row");
  }
  // The sigmoid has an error of 4e-7.
  report.expect(name, relative_error(values, exact), s.gated ? 4 * allowed(dtype) : allowed(dtype));
  return values;
}

void verify_quantised_linear(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    // 528, 4160 and 16384: units of `in` that are not whole, several rounds of units a warp, and x that does not fit into shared memory.
    // 8800: several tiles of outputs a block.
    for (const Size& s : {Size{1, 1792, 1792}, Size{1, 1792, 200, true}, Size{2, 64, 16, false, false}, Size{7, 528, 21}, Size{16, 96, 40},
                          Size{35, 1024, 130}, Size{64, 48, 8, true, false}, Size{3, 37, 11}, Size{18, 7, 6, true}, Size{5, 1, 1},
                          Size{4, 1792, 7168, true}, Size{9, 112, 8800}, Size{16, 3584, 56}, Size{3, 4160, 40, true}, Size{16, 16384, 24},
                          Size{4, 16384, 24}})
      verify_one(report, s, dtype);
    for (const Size& all : {Size{64, 320, 24}, Size{64, 1792, 40}, Size{64, 4160, 16}, Size{64, 101, 18, true}}) {
      const std::vector<double> values = verify_one(report, all, dtype);
      for (const int64_t rows : {1, 2, 3, 7, 8, 9, 16, 17, 33}) {
        const std::vector<double> some = verify_one(report, {rows, all.in, all.out, all.gated}, dtype);
        if (!std::equal(some.begin(), some.end(), values.begin()))
          report.fail("quantised_linear: a row's bits depend on the number of rows");
      }
    }
    for (const int64_t in : {48, 37}) {
      const Ints weight = random_ints(3 * in);
      const Buffer scale = random_buffer(3, DType::f32, 1, 4);
      Buffer y(3 * in * 4);
      check(gpu::dequantise({weight.memory.as(), scale.as<float>(), y.as(), 3, in, dtype}, {}));
      const auto scales = download(scale.as(), DType::f32, 3), got = download(y.as(), dtype, 3 * in);
      std::vector<double> exact;
      for (int64_t i = 0; i < 3 * in; ++i) exact.push_back(weight.values[i] * scales[i / in]);
      report.expect("dequantise 3 x " + std::to_string(in) + type_name(dtype), relative_error(got, exact), allowed(dtype));
    }
  }
}

const DefineFamily<Report> kQuantisedLinear("quantised_linear", verify_quantised_linear);

}  // namespace
}  // namespace based::tests
