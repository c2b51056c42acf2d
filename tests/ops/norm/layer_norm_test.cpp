#include "based/ops/norm/layer_norm.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace layer_norm_test {

using namespace testing;
using std::vector;

constexpr double kEps = 1e-5;

vector<Tensor> to_type(const vector<Tensor>& tensors, at::ScalarType type) {
  vector<Tensor> result;
  for (const Tensor& t : tensors) result.push_back(t.to(type));
  return result;
}

// `op` on a device, in fp32 and bf16, against `exact` in double: values and gradients.
void expect_like_double(at::DeviceType device, const Function& op, const Function& exact, const vector<Tensor>& inputs) {
  const NanFilledMemory nan_filled;
  const vector<Tensor> doubles = to_type(to_type(inputs, at::kBFloat16), at::kDouble);
  const vector<Tensor> expected = exact(doubles);
  vector<Tensor> cotangents = to_type(to_type(random_like(expected), at::kBFloat16), at::kDouble);
  const vector<Tensor> expected_gradients = gradients(exact, doubles, cotangents);
  const Function there = on_device(op, device);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const vector<Tensor> typed = to_type(doubles, type), actual = there(typed);
    vector<Tensor> typed_cotangents;
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << type << ", output " << i << " of " << inputs[0].sizes();
      typed_cotangents.push_back(cotangents[i].to(actual[i].scalar_type()));
    }
    const vector<Tensor> actual_gradients = gradients(there, typed, typed_cotangents);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(actual_gradients[i].scalar_type(), type);
      EXPECT_TRUE(close(actual_gradients[i], expected_gradients[i], tolerance))
          << type << ", gradient " << i << " of " << inputs[0].sizes();
    }
  }
}

vector<Tensor> norm(const vector<Tensor>& t) { return {layer_norm(t[0], t[1], t[2], kEps)}; }
vector<Tensor> norm_by_formula(const vector<Tensor>& t) { return {layer_norm_reference(t[0], t[1], t[2], kEps)}; }
vector<Tensor> norm_add(const vector<Tensor>& t) {
  const auto [sum, y] = layer_norm_add(t[0], t[1], t[2], t[3], kEps);
  return {sum, y};
}
vector<Tensor> norm_add_by_formula(const vector<Tensor>& t) {
  const Tensor sum = t[0] + t[1];
  return {sum, layer_norm_reference(sum, t[2], t[3], kEps)};
}

vector<Tensor> add_twice(const vector<Tensor>& t) {
  const auto [sum, y] = layer_norm_add_twice({t[0], t[1], t[2], t[3], t[4], t[5], kEps, true});
  return {sum, y};
}
vector<Tensor> add_twice_by_formula(const vector<Tensor>& t) {
  const Tensor sum = t[0] + t[1], next = sum + layer_norm_reference(sum, t[2], t[3], kEps);
  return {next, layer_norm_reference(next, t[4], t[5], kEps)};
}
vector<Tensor> add_twice_by_halves(const vector<Tensor>& t) {
  const auto [sum, added] = layer_norm_add(t[0], t[1], t[2], t[3], kEps);
  const auto [next, y] = layer_norm_add(sum, added, t[4], t[5], kEps);
  return {next, y};
}
vector<Tensor> twice_inputs(int64_t rows, int64_t width, at::ScalarType type = at::kDouble) {
  vector<Tensor> in{random({rows, width}, type) + 1, random({rows, width}, type)};
  for (int i = 0; i < 4; ++i) in.push_back(random({width}, type));
  return in;
}

// Every form of the kernels: parts of a warp, several units a lane, odd widths, and rows too wide for them.
const vector<std::pair<int64_t, int64_t>> kSizes{{0, 5},     {3, 7},   {70, 32}, {37, 48},   {300, 64},
                                                 {130, 128}, {9, 256}, {9, 500}, {33, 1024}, {2, 1100}};

BASED_ON_EVERY_DEVICE(LayerNorms);

TEST_P(LayerNorms, EqualTheReference) {
  for (const auto& [rows, width] : kSizes)
    expect_like_double(GetParam(), norm, norm_by_formula, {random({rows, width}) + 1, random({width}), random({width})});
  EXPECT_TRUE(gradcheck(norm, {random({3, 2, 5}), random({5}), random({5})}));
}

TEST_P(LayerNorms, OfASumEqualTheReference) {
  for (const auto& [rows, width] : kSizes)
    expect_like_double(GetParam(), norm_add, norm_add_by_formula,
                       {random({rows, width}) + 1, random({rows, width}), random({width}), random({width})});
  EXPECT_TRUE(gradcheck(norm_add, {random({3, 2, 5}), random({3, 2, 5}), random({5}), random({5})}));
}

// A mean that is large beside the deviations costs no digits of them.
TEST_P(LayerNorms, KeepTheirDigitsFarFromZero) {
  const Tensor x = random({20, 96}, at::kFloat) + 1000, weight = random({96}, at::kFloat), bias = random({96}, at::kFloat);
  const Tensor y = layer_norm(x.to(GetParam()), weight.to(GetParam()), bias.to(GetParam()), kEps);
  EXPECT_TRUE(close(y, layer_norm_reference(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), kEps), 1e-3));
}

TEST_P(LayerNorms, OfASumMayBeginTheStream) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const Function op = [](const vector<Tensor>& t) {
      const auto [sum, y] = layer_norm_add(std::nullopt, t[0], t[1], t[2], kEps);
      return vector<Tensor>{sum, y};
    };
    const vector<Tensor> in{random({33, 48}, type).to(GetParam()), random({48}, type).to(GetParam()), random({48}, type).to(GetParam())};
    const vector<Tensor> out = op(in);
    EXPECT_EQ(out[0].scalar_type(), sum_type(in[0]));
    EXPECT_TRUE(at::equal(out[0], in[0].to(sum_type(in[0]))));
    EXPECT_FALSE(out[0].data_ptr() == in[0].data_ptr());
    EXPECT_TRUE(same_bits(out[1], layer_norm(out[0], in[1], in[2], kEps)));
    vector<Tensor> cotangents, exact_cotangents, exact;
    for (const Tensor& t : in) exact.push_back(t.cpu().to(at::kDouble));
    for (const Tensor& t : out) {
      cotangents.push_back(random({33, 48}, t.scalar_type()).to(GetParam()));
      exact_cotangents.push_back(cotangents.back().cpu().to(at::kDouble));
    }
    const auto actual = gradients(op, in, cotangents), expected = gradients(op, exact, exact_cotangents);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(actual[i], expected[i], type == at::kBFloat16 ? 2e-2 : 1e-5)) << i << ", " << type;
  }
}

// An fp32 stream of bf16 weights, and only one of the results used.
TEST_P(LayerNorms, OfASumKeepTheTypes) {
  for (const int used : {0, 1, 2}) {
    const Function op = [used](const vector<Tensor>& t) {
      const vector<Tensor> both = norm_add(t);
      return used == 2 ? both : vector<Tensor>{both[static_cast<size_t>(used)]};
    };
    const auto draw = [&](at::IntArrayRef sizes, at::ScalarType type) { return random(sizes, type).to(GetParam()); };
    const vector<Tensor> in{draw({9, 40}, at::kFloat), draw({9, 40}, at::kBFloat16), draw({40}, at::kBFloat16), draw({40}, at::kBFloat16)};
    vector<Tensor> exact, cotangents, exact_cotangents;
    for (const Tensor& t : in) exact.push_back(t.cpu().to(at::kDouble));
    for (const Tensor& out : op(in)) {
      cotangents.push_back(random({9, 40}, out.scalar_type()).to(GetParam()));
      exact_cotangents.push_back(cotangents.back().cpu().to(at::kDouble));
    }
    const auto actual = gradients(op, in, cotangents), expected = gradients(op, exact, exact_cotangents);
    for (size_t i = 0; i < (used == 0 ? 2u : 4u); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), in[i].scalar_type());
      EXPECT_TRUE(close(actual[i], expected[i], 2e-2)) << "input " << i << ", used " << used;
    }
  }
}

TEST_P(LayerNorms, AddInPlaceFirst) {
  const at::NoGradGuard no_grad;
  for (const auto& [rows, width] : kSizes)
    for (const auto& [residual_type, type] :
         {std::pair{at::kDouble, at::kDouble}, std::pair{at::kFloat, at::kFloat}, std::pair{at::kFloat, at::kBFloat16}}) {
      const NanFilledMemory nan_filled;
      const auto draw = [&](at::IntArrayRef sizes, at::ScalarType dtype) { return random(sizes, dtype).to(GetParam()); };
      const Tensor start = draw({rows, width}, residual_type), x = draw({rows, width}, type), weight = draw({width}, type),
                   bias = draw({width}, type);
      const auto [sum, y] = layer_norm_add(start, x, weight, bias, kEps);
      const Tensor residual = start.clone();
      EXPECT_TRUE(same_bits(layer_norm_add_(residual, x, weight, bias, kEps), y)) << rows << " x " << width << ' ' << type;
      EXPECT_TRUE(same_bits(residual, sum));
    }
}

// The gradients are sums in a fixed order.
TEST_P(LayerNorms, GiveTheSameBitsAgain) {
  const vector<Tensor> in{random({5000, 128}, at::kFloat), random({5000, 128}, at::kFloat), random({128}, at::kFloat),
                          random({128}, at::kFloat)};
  const Function op = on_device(norm_add, GetParam());
  const vector<Tensor> cotangents{random({5000, 128}, at::kFloat), random({5000, 128}, at::kFloat)};
  const vector<Tensor> once = gradients(op, in, cotangents), again = gradients(op, in, cotangents);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(same_bits(once[i], again[i])) << i;
}

TEST_P(LayerNorms, OfASumTwiceEqualTheReference) {
  for (const auto& [rows, width] : kSizes) expect_like_double(GetParam(), add_twice, add_twice_by_formula, twice_inputs(rows, width));
  vector<Tensor> in = twice_inputs(6, 5);
  for (int i = 0; i < 2; ++i) in[static_cast<size_t>(i)] = in[static_cast<size_t>(i)].view({3, 2, 5});
  EXPECT_TRUE(gradcheck(add_twice, in));
}

// An fp32 residual stream with bf16 weights, at its first or a later addition, with only one of the results used.
TEST_P(LayerNorms, OfASumTwiceKeepTheTypes) {
  for (const bool begins : {false, true})
    for (const int used : {0, 1, 2, 3}) {  // 3: y, without storing the sum
      const Function op = [&](const vector<Tensor>& t) {
        const auto [sum, y] =
            layer_norm_add_twice({begins ? OptionalTensor() : OptionalTensor(t[5]), t[0], t[1], t[2], t[3], t[4], kEps, used != 3});
        EXPECT_EQ(sum.numel() == 0, used == 3);
        return used == 2 ? vector<Tensor>{sum, y} : vector<Tensor>{used == 0 ? sum : y};
      };
      const auto draw = [&](at::IntArrayRef sizes, at::ScalarType type) { return random(sizes, type).to(GetParam()); };
      vector<Tensor> in{draw({9, 40}, at::kBFloat16)};
      for (int i = 0; i < 4; ++i) in.push_back(draw({40}, at::kBFloat16));
      if (!begins) in.push_back(draw({9, 40}, at::kFloat));
      vector<Tensor> exact, cotangents, exact_cotangents;
      for (const Tensor& t : in) exact.push_back(t.cpu().to(at::kDouble));
      for (const Tensor& out : op(in)) {
        EXPECT_EQ(out.scalar_type(), used == 1 || used == 3 || (used == 2 && !cotangents.empty()) ? at::kBFloat16 : at::kFloat);
        cotangents.push_back(random({9, 40}, out.scalar_type()).to(GetParam()));
        exact_cotangents.push_back(cotangents.back().cpu().to(at::kDouble));
      }
      const auto actual = gradients(op, in, cotangents), expected = gradients(op, exact, exact_cotangents);
      for (size_t i = 0; i < in.size(); ++i) {
        if (used == 0 && (i == 3 || i == 4)) continue;  // only y depends on these inputs
        EXPECT_EQ(actual[i].scalar_type(), in[i].scalar_type());
        EXPECT_TRUE(close(actual[i], expected[i], 4e-2)) << "input " << i << ", used " << used << ", begins " << begins;
      }
    }
}

TEST_P(LayerNorms, OfASumTwiceGiveTheSameBitsAgain) {
  const vector<Tensor> in = twice_inputs(5000, 128, at::kFloat);
  const Function op = on_device(add_twice, GetParam());
  const vector<Tensor> cotangents{random({5000, 128}, at::kFloat), random({5000, 128}, at::kFloat)};
  const vector<Tensor> once = gradients(op, in, cotangents), again = gradients(op, in, cotangents);
  for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(same_bits(once[i], again[i])) << i;
}

// The operators that autograd calls where there are kernels, on the CPU: by halves too, and the second sum computed again.
TEST(LayerNorm, OfASumTwiceIsItsHalvesOnTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const vector<Tensor> in = twice_inputs(40, 96, type);
    const vector<Tensor> expected = add_twice_by_halves(in), cotangents{random({40, 96}, sum_type(in[0])), random({40, 96}, type)};
    const auto [first_sum, sum, y, mean, inverse_std] =
        call(LayerNormAddTwiceForward{{in[0], in[1], in[2], in[3], in[4], in[5], kEps, true}});
    EXPECT_TRUE(same_bits(sum, expected[0]) && same_bits(y, expected[1])) << type;
    const auto [x, weight, bias, next_weight, next_bias] =
        call(LayerNormAddTwiceBackward{cotangents[0].to(type), cotangents[1], first_sum, in[2], in[3], in[4], in[5], mean, inverse_std});
    const vector<Tensor> actual{x, x, weight, bias, next_weight, next_bias};
    const vector<Tensor> typed{cotangents[0].to(expected[0].scalar_type()), cotangents[1]};
    const vector<Tensor> half_gradients = gradients(add_twice_by_halves, in, typed), operator_gradients = gradients(add_twice, in, typed);
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(same_bits(operator_gradients[i], half_gradients[i])) << type << ' ' << i;
      EXPECT_TRUE(close(actual[i], half_gradients[i], type == at::kBFloat16 ? 4e-2 : 1e-5)) << type << ' ' << i;
    }
  }
}

// On the CPU a norm is ATen's, bit for bit. Not in bf16, which ATen rounds differently on different processors.
TEST(LayerNorm, IsThatOfATenOnTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const Tensor x = random({40, 96}, type), weight = random({96}, type), bias = random({96}, type);
    EXPECT_TRUE(same_bits(layer_norm(x, weight, bias, kEps), at::layer_norm(x, {96}, weight, bias, kEps))) << type;
    const Function ours = [](const vector<Tensor>& t) { return norm(t); };
    const Function atens = [](const vector<Tensor>& t) { return vector<Tensor>{at::layer_norm(t[0], {96}, t[1], t[2], kEps)}; };
    const vector<Tensor> cotangent{random({40, 96}, type)};
    const auto actual = gradients(ours, {x, weight, bias}, cotangent), expected = gradients(atens, {x, weight, bias}, cotangent);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << type << ' ' << i;
  }
}

TEST(LayerNorm, ErrorsNameOperatorArgumentAndValue) {
  const Tensor x = at::zeros({2, 8}), weight = at::ones({8});
  EXPECT_EQ(error_of([&] { layer_norm(x, at::ones({7}), weight, kEps); }), "layer_norm: weight must have shape [8], got [7]");
  EXPECT_EQ(error_of([&] { layer_norm(x, weight, at::ones({7}), kEps); }), "layer_norm: bias must have shape [8], got [7]");
  EXPECT_EQ(error_of([&] {
              layer_norm_add(x, at::zeros({2, 7}), weight, weight, kEps);
            }),
            "layer_norm_add: x must have shape [2, 8], got [2, 7]");
  EXPECT_EQ(error_of([&] {
              layer_norm_add_(at::zeros({8, 2}).t(), x, weight, weight, kEps);
            }),
            "layer_norm_add_: residual must be contiguous");
  EXPECT_EQ(error_of([&] {
              layer_norm_add_twice({x, x, weight, weight, weight, at::ones({7}), kEps, true});
            }),
            "layer_norm_add_twice: bias must have shape [8], got [7]");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none;
  const Tensor x = f({5, 6}), weight = f({6}), bias = f({6});
  const auto bf = [](const Tensor& t) { return t.to(at::kBFloat16); };
  return {
      {"layer_norm", {x, weight, bias, 1e-5}},
      {"layer_norm", {x, bf(weight), bf(bias), 1e-5}},
      {"layer_norm_forward", {x, bf(weight), bf(bias), 1e-5}},
      {"layer_norm_add", {f({5, 6}), x, weight, bias, 1e-5}},
      {"layer_norm_add", {none, bf(x), bf(weight), bf(bias), 1e-5}},
      {"layer_norm_add_forward", {f({5, 6}), bf(x), bf(weight), bf(bias), 1e-5}},
      {"layer_norm_backward", {none, f({5, 6}), x, weight, bias, f({5}), f({5})}},
      {"layer_norm_backward", {bf(f({5, 6})), bf(f({5, 6})), x, bf(weight), bf(bias), f({5}), f({5})}},
      {"layer_norm_add_", {f({5, 6}), x, weight, bias, 1e-5}},
      {"layer_norm_add_twice", {f({5, 6}), x, weight, bias, f({6}), f({6}), 1e-5, true}},
      {"layer_norm_add_twice", {none, bf(x), bf(weight), bf(bias), bf(f({6})), bf(f({6})), 1e-5, false}},
      {"layer_norm_add_twice_forward", {f({5, 6}), bf(x), bf(weight), bf(bias), bf(f({6})), bf(f({6})), 1e-5, true}},
      {"layer_norm_add_twice_backward", {none, f({5, 6}), x, weight, bias, f({6}), f({6}), f({2, 5}), f({2, 5})}},
  };
}

const DefineSchemaCases kSchemaCases("layer_norm", schema_cases);

}  // namespace layer_norm_test
}  // namespace based::ops
