
#include "based/ops/attention/rotary.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear/linear.h"
#include "based/ops/norm/rms_norm.h"
#include "based/ops/pointwise/swiglu.h"
#include "based/ops/training/cross_entropy.h"
#include "based/ops/training/embedding.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace pointwise_test {

using namespace testing;
using std::vector;

BASED_ON_EVERY_DEVICE(PointwiseOnDevices);

TEST_P(PointwiseOnDevices, RmsNormEqualsTheReference) {
  const auto with = [](Tensor (*op)(const Tensor&, const Tensor&, double)) {
    return Function([op](const vector<Tensor>& t) { return vector<Tensor>{op(t[0], t[1], 1e-5)}; });
  };
  for (const auto& [rows, width] :
       {std::pair{0, 5}, std::pair{3, 7}, std::pair{130, 64}, std::pair{9, 1024}, std::pair{2, 1000}, std::pair{2, 8200}})
    expect_like_reference(GetParam(), with(rms_norm), with(rms_norm_reference), {random({rows, width}), random({width})});
  // One wide: y is the sign of x, so the terms of its gradient, about 1 each here, cancel and leave their rounding.
  expect_like_reference(GetParam(), with(rms_norm), with(rms_norm_reference), {torch::tensor({{-1.25}}, at::kDouble), random({1})}, 1);
  EXPECT_TRUE(gradcheck(with(rms_norm), {random({3, 2, 5}), random({5})}));
  const Tensor x = torch::tensor({{3.0, 4.0}}, at::kDouble);
  EXPECT_TRUE(
      close(rms_norm(x, torch::tensor({1.0, 2.0}, at::kDouble), 0), torch::tensor({{3.0, 8.0}}, at::kDouble) / std::sqrt(12.5), 1e-14));
}

// With a gate: the same with gradients, where it is two operators, and in one.
TEST_P(PointwiseOnDevices, GatedRmsNorm) {
  const Function op = [](const vector<Tensor>& t) { return vector<Tensor>{rms_norm_gated(t[0], t[1], 1e-5, t[2])}; };
  const Function plain = [](const vector<Tensor>& t) { return vector<Tensor>{rms_norm_reference(t[0], t[1], 1e-5) * at::silu(t[2])}; };
  for (const auto& sizes : {vector<int64_t>{0, 3, 5}, {3, 2, 7}, {70, 64}, {5, 3, 128}, {130, 256}, {9, 1024}, {2, 8200}})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const vector<Tensor> inputs = {random(sizes, type), random({sizes.back()}, type), random(sizes, type)};
      const vector<Tensor> exact = {inputs[0].to(at::kDouble), inputs[1].to(at::kDouble), inputs[2].to(at::kDouble)};
      const double tolerance = type == at::kDouble ? 1e-13 : type == at::kFloat ? 2e-6 : 1e-2;
      const Tensor y = on_device(op, GetParam())(inputs)[0];
      EXPECT_TRUE(close(y, plain(exact)[0], tolerance)) << type << at::IntArrayRef(sizes);
      // On a GPU doubles and the widest rows are summed by ATen, in an order that depends on the number of rows.
      if (sizes[0] == 0 || (GetParam() == at::kCUDA && (type == at::kDouble || sizes.back() > 8192))) continue;
      const at::NoGradGuard no_grad;
      const auto row = [&](int64_t i) { return vector<Tensor>{inputs[0].narrow(0, i, 1), inputs[1], inputs[2].narrow(0, i, 1)}; };
      EXPECT_TRUE(same_bits(on_device(op, GetParam())(row(1))[0], y.narrow(0, 1, 1))) << type << at::IntArrayRef(sizes);
    }
  EXPECT_TRUE(gradcheck(op, {random({3, 2, 5}), random({5}), random({3, 2, 5})}));
}

TEST(RmsNorm, AnFp32ResidualGivesTheWeightsType) {
  const Tensor x = random({9, 33}, at::kFloat), weight = random({33}, at::kBFloat16);
  const Function op = [](const vector<Tensor>& t) { return vector<Tensor>{rms_norm(t[0], t[1], 1e-5)}; };
  const Tensor y = op({x, weight})[0];
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const vector<Tensor> exact{x.to(at::kDouble), weight.to(at::kDouble)};
  EXPECT_TRUE(close(y, rms_norm_reference(exact[0], exact[1], 1e-5), 1e-2));
  const Tensor cotangent = random({9, 33}, at::kBFloat16);
  const auto actual = gradients(op, {x, weight}, {cotangent}), expected = gradients(op, exact, {cotangent.to(at::kDouble)});
  EXPECT_EQ(actual[0].scalar_type(), at::kFloat);
  EXPECT_EQ(actual[1].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(close(actual[0], expected[0], 1e-4));
  EXPECT_TRUE(close(actual[1], expected[1], 2e-2));
}

TEST_P(PointwiseOnDevices, RmsNormOfASumEqualsTheReference) {
  const auto with = [](decltype(&rms_norm_add) op) {
    return Function([op](const vector<Tensor>& t) {
      const auto [sum, y] = op(t[0], t[1], t[2], 1e-5);
      return vector<Tensor>{sum, y};
    });
  };
  for (const auto& [rows, width] : {std::pair{0, 5}, std::pair{3, 7}, std::pair{130, 64}, std::pair{40, 1024}, std::pair{2, 8200}})
    expect_like_reference(GetParam(), with(rms_norm_add), with(rms_norm_add_reference),
                          {random({rows, width}), random({rows, width}), random({width})});
  EXPECT_TRUE(gradcheck(with(rms_norm_add), {random({3, 2, 5}), random({3, 2, 5}), random({5})}));
}

TEST_P(PointwiseOnDevices, RmsNormOfASumMayBeginTheStream) {
  for (const auto& [rows, width] : {std::pair{0, 5}, std::pair{3, 7}, std::pair{130, 64}, std::pair{40, 1024}, std::pair{2, 8200}})
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const NanFilledMemory nan_filled;
      const Function op = [](const vector<Tensor>& t) {
        const auto [sum, y] = rms_norm_add(std::nullopt, t[0], t[1], 1e-5);
        return vector<Tensor>{sum, y};
      };
      const vector<Tensor> in{random({rows, width}, type).to(GetParam()), random({width}, type).to(GetParam())};
      const auto out = op(in);
      EXPECT_EQ(out[0].scalar_type(), sum_type(in[0]));
      EXPECT_TRUE(at::equal(out[0], in[0].to(sum_type(in[0]))));
      EXPECT_TRUE(same_bits(out[1], rms_norm(out[0], in[1], 1e-5)));
      vector<Tensor> exact, cotangents, exact_cotangents;
      for (const Tensor& t : in) exact.push_back(t.cpu().to(at::kDouble));
      for (const Tensor& t : out) {
        cotangents.push_back(random({rows, width}, t.scalar_type()).to(GetParam()));
        exact_cotangents.push_back(cotangents.back().cpu().to(at::kDouble));
      }
      const auto actual = gradients(op, in, cotangents), expected = gradients(op, exact, exact_cotangents);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(actual[i].scalar_type(), type);
        EXPECT_TRUE(close(actual[i], expected[i], type == at::kBFloat16 ? 2e-2 : 1e-5)) << "input " << i << ", " << type;
      }
    }
}

// An fp32 residual, and only one of the results used.
TEST_P(PointwiseOnDevices, RmsNormOfASumKeepsTheTypes) {
  for (const int used : {0, 1, 2}) {
    const Function op = [used](const vector<Tensor>& t) {
      const auto [sum, y] = rms_norm_add(t[0], t[1], t[2], 1e-5);
      return used == 0 ? vector<Tensor>{sum} : used == 1 ? vector<Tensor>{y} : vector<Tensor>{sum, y};
    };
    const vector<Tensor> in{random({9, 40}, at::kFloat).to(GetParam()), random({9, 40}, at::kBFloat16).to(GetParam()),
                            random({40}, at::kBFloat16).to(GetParam())};
    vector<Tensor> exact, cotangents, exact_cotangents;
    for (const Tensor& t : in) exact.push_back(t.cpu().to(at::kDouble));
    for (const Tensor& out : op(in)) {
      cotangents.push_back(random({9, 40}, out.scalar_type()).to(GetParam()));
      exact_cotangents.push_back(cotangents.back().cpu().to(at::kDouble));
    }
    const auto actual = gradients(op, in, cotangents), expected = gradients(op, exact, exact_cotangents);
    for (size_t i = 0; i < (used == 0 ? 2u : 3u); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), in[i].scalar_type());
      EXPECT_TRUE(close(actual[i], expected[i], i == 2 ? 2e-2 : 5e-3)) << "input " << i << ", used " << used;
    }
  }
  EXPECT_EQ(error_of([] {
              rms_norm_add(at::zeros({2, 8}), at::zeros({2, 7}), at::ones({8}), 1e-5);
            }),
            "rms_norm_add: x must have shape [2, 8], got [2, 7]");
}

// Between two sums the gradient stays in bf16, though the stream itself is fp32; a gradient from elsewhere becomes so.
TEST_P(PointwiseOnDevices, TheGradientOfAStreamHasTheWeightsType) {
  const auto drawn = [](at::ScalarType type) { return random({9, 40}, type).to(GetParam()).set_requires_grad(true); };
  const Tensor start = drawn(at::kFloat), a = drawn(at::kBFloat16), b = drawn(at::kBFloat16);
  const Tensor weight = random({40}, at::kBFloat16).to(GetParam()), cotangent = random({9, 40}, at::kFloat).to(GetParam());
  const auto [sum, y] = rms_norm_add(start, a, weight, 1e-5);
  const auto [all, z] = rms_norm_add(sum, b, weight, 1e-5);
  std::vector<at::ScalarType> seen;
  for (const Tensor& t : {sum, all}) t.register_hook([&](const Tensor& grad) { seen.push_back(grad.scalar_type()); });
  torch::autograd::backward({all, y, z}, {cotangent, cotangent.to(at::kBFloat16), cotangent.to(at::kBFloat16)});
  EXPECT_EQ(seen, (std::vector<at::ScalarType>{at::kBFloat16, at::kBFloat16}));
  EXPECT_EQ(start.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(start.grad(), a.grad().to(at::kFloat)));
  EXPECT_FALSE(start.grad().data_ptr() == a.grad().data_ptr());
}

TEST_P(PointwiseOnDevices, RmsNormAddsInPlaceFirst) {
  const at::NoGradGuard no_grad;
  for (const auto& [rows, width] : {std::pair{0, 5}, std::pair{3, 7}, std::pair{9, 1792}, std::pair{2, 4000}, std::pair{2, 8200}})
    for (const auto& [residual_type, type, tolerance] :
         {std::tuple{at::kDouble, at::kDouble, 1e-12}, std::tuple{at::kFloat, at::kFloat, 1e-5},
          std::tuple{at::kFloat, at::kBFloat16, 1e-2}, std::tuple{at::kBFloat16, at::kBFloat16, 2e-2}}) {
      const NanFilledMemory nan_filled;
      const Tensor start = random({rows, width}, residual_type), x = random({rows, width}, type), weight = random({width}, type);
      const Tensor sum = start.to(at::kDouble) + x.to(at::kDouble);
      Tensor residual = start.to(GetParam(), /*non_blocking=*/false, /*copy=*/true);
      const Tensor y = rms_norm_add_(residual, x.to(GetParam()), weight.to(GetParam()), 1e-5);
      EXPECT_EQ(y.scalar_type(), type);
      EXPECT_TRUE(close(residual, sum, residual_type == at::kBFloat16 ? 1e-2 : 1e-6));
      EXPECT_TRUE(close(y, rms_norm_reference(sum, weight.to(at::kDouble), 1e-5), tolerance)) << rows << " x " << width << ' ' << type;
    }
  EXPECT_EQ(error_of([] {
              rms_norm_add_(at::zeros({2, 8}), at::zeros({2, 7}), at::ones({8}), 1e-5);
            }),
            "rms_norm_add_: x must have shape [2, 8], got [2, 7]");
  EXPECT_EQ(error_of([] {
              rms_norm_add_(at::zeros({2, 8}), at::zeros({2, 8}), at::ones({8}), 1e-5, at::zeros({2, 6}));
            }),
            "rms_norm_add_: deferred must have shape [2, 8], got [2, 6]");
}

// A norm that leaves the sum to the next one: the same bits as two norms that each keep it.
TEST_P(PointwiseOnDevices, ASumLeftToTheNextNormHasTheSameBits) {
  const at::NoGradGuard no_grad;
  for (const auto& [rows, width] : {std::pair{0, 5}, std::pair{3, 7}, std::pair{9, 1792}, std::pair{2, 4000}, std::pair{2, 8200}})
    for (const auto& [residual_type, type] :
         {std::pair{at::kDouble, at::kDouble}, std::pair{at::kFloat, at::kFloat}, std::pair{at::kFloat, at::kBFloat16}}) {
      const NanFilledMemory nan_filled;
      const auto draw = [&](at::ScalarType dtype) { return random({rows, width}, dtype).to(GetParam()); };
      const Tensor start = draw(residual_type), a = draw(type), b = draw(type), weight = random({width}, type).to(GetParam());
      const Tensor kept = start.clone(), left = start.clone();
      const Tensor first = rms_norm_add_(kept, a, weight, 1e-5), second = rms_norm_add_(kept, b, weight, 1e-5);
      EXPECT_TRUE(same_bits(rms_norm_of_sum(left, a, weight, 1e-5), first)) << rows << " x " << width << ' ' << type;
      EXPECT_TRUE(same_bits(left, start));
      EXPECT_TRUE(same_bits(rms_norm_add_(left, b, weight, 1e-5, a), second)) << rows << " x " << width << ' ' << type;
      EXPECT_TRUE(same_bits(left, kept)) << rows << " x " << width << ' ' << type;
    }
}

TEST_P(PointwiseOnDevices, SwigluEqualsTheReference) {
  const auto with = [](Tensor (*op)(const Tensor&)) {
    return Function([op](const vector<Tensor>& t) { return vector<Tensor>{op(t[0])}; });
  };
  for (const auto& [rows, width] : {std::pair{0, 4}, std::pair{1, 2}, std::pair{5, 34}, std::pair{65, 256}})
    expect_like_reference(GetParam(), with(swiglu), with(swiglu_reference), {random({rows, width})});
  EXPECT_TRUE(gradcheck(with(swiglu), {random({3, 6})}));
  const double gate = 0.7;
  EXPECT_NEAR(swiglu(torch::tensor({{2.0, gate}}, at::kDouble)).item<double>(), 2 * gate / (1 + std::exp(-gate)), 1e-14);
  const Tensor wide = random({5, 9}, at::kFloat);
  EXPECT_TRUE(same_bits(swiglu(wide.narrow(1, 1, 8)), swiglu(wide.narrow(1, 1, 8).contiguous())));
}

Tensor turned_copy(const Tensor& x, const Tensor& positions, const Rotation& rotation) { return rotary_(x.clone(), positions, rotation); }

TEST_P(PointwiseOnDevices, RotaryEqualsTheReference) {
  struct Sizes {
    int64_t tokens, heads, head_dim, dim;
  };
  for (const bool interleaved : {false, true}) {
    for (const Sizes& s : {Sizes{0, 2, 8, 8}, Sizes{1, 1, 2, 2}, Sizes{7, 3, 10, 6}, Sizes{65, 2, 64, 64}, Sizes{5, 1, 16, 0}}) {
      const Tensor positions = at::arange(s.tokens) * 1000 + 3;
      for (const bool inverse : {false, true}) {
        const Rotation rotation{s.heads, s.head_dim, s.dim, 10000, interleaved, inverse};
        const auto with = [&](decltype(&rotary_reference) op) {
          return Function([=](const vector<Tensor>& t) { return vector<Tensor>{op(t[0], positions.to(t[0].device()), rotation)}; });
        };
        expect_like_reference(GetParam(), with(turned_copy), with(rotary_reference), {random({s.tokens, s.heads * s.head_dim + 6})});
      }
    }
    const Tensor positions = torch::tensor({5, 0, 90}, at::kLong);
    const auto op = [&](const vector<Tensor>& t) { return vector<Tensor>{turned_copy(t[0], positions, {2, 6, 4, 100, interleaved})}; };
    EXPECT_TRUE(gradcheck(op, {random({3, 14})}));
  }
}

TEST_P(PointwiseOnDevices, RotaryLeavesAGradientAloneThatOthersSee) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(GetParam());
  const Tensor x = at::ones({4, 16}, options).requires_grad_(), positions = at::arange(4, options.dtype(at::kLong));
  const Tensor grad = at::ones({4, 16}, options);
  const Tensor x_gradient = torch::autograd::grad({turned_copy(x, positions, {1, 16, 16})}, {x}, {grad})[0];
  EXPECT_TRUE(same_bits(grad, at::ones({4, 16}, options)));
  EXPECT_FALSE(same_bits(x_gradient, grad));
  // The gradient of a sum goes to both of its terms, in one tensor.
  const Tensor a = at::ones({4, 16}, options).requires_grad_(), b = at::ones({4, 16}, options).requires_grad_();
  const auto grads = torch::autograd::grad({turned_copy(a, positions, {1, 16, 16}) + b}, {a, b}, {grad});
  EXPECT_TRUE(same_bits(grads[0], x_gradient));
  EXPECT_TRUE(same_bits(grads[1], grad));
  // Rows that are one and the same in memory, as the gradient of a sum over them may be.
  struct OneRow : torch::autograd::Function<OneRow> {
    static Tensor forward(torch::autograd::AutogradContext*, const Tensor& t) { return t.sum(0); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list& grads) {
      const at::AutoDispatchBelowADInplaceOrView no_base;
      return {(grads[0] + 0).expand({4, 16})};
    }
  };
  EXPECT_TRUE(same_bits(torch::autograd::grad({OneRow::apply(turned_copy(a, positions, {1, 16, 16})).sum()}, {a})[0], x_gradient));
}

TEST(Rotary, TurnsHalvesOrPairs) {
  const Tensor x = torch::tensor({{1.0, 2.0, 3.0, 4.0, 5.0, 6.0}}, at::kDouble), position = torch::tensor({3}, at::kLong);
  const double a = 3, b = 3 / 10.0;  // angles of base 100 and dim 4
  const auto turn = [](double x0, double x1, double angle) {
    return std::pair{x0 * std::cos(angle) - x1 * std::sin(angle), x0 * std::sin(angle) + x1 * std::cos(angle)};
  };
  const auto [p0, p2] = turn(1, 3, a);
  const auto [p1, p3] = turn(2, 4, b);
  EXPECT_TRUE(close(turned_copy(x, position, {1, 5, 4, 100}), torch::tensor({{p0, p1, p2, p3, 5.0, 6.0}}, at::kDouble), 1e-14));
  const auto [i0, i1] = turn(1, 2, a);
  const auto [i2, i3] = turn(3, 4, b);
  EXPECT_TRUE(close(turned_copy(x, position, {1, 5, 4, 100, true}), torch::tensor({{i0, i1, i2, i3, 5.0, 6.0}}, at::kDouble), 1e-14));
}

TEST(Rotary, StaysExactFarOutAndTurnsColumnSlices) {
  const Tensor positions = torch::tensor({100000, 1000000, 16777217}, at::kLong), wide = random({3, 96}, at::kFloat);
  const Tensor before = wide.clone(), exact = rotary_reference(wide.narrow(1, 32, 64).to(at::kDouble), positions, {2, 32, 32});
  rotary_(wide.narrow(1, 32, 64), positions, {2, 32, 32});
  EXPECT_TRUE(close(wide.narrow(1, 32, 64), exact, 1e-5));
  EXPECT_TRUE(same_bits(wide.narrow(1, 0, 32), before.narrow(1, 0, 32)));
}

TEST_P(PointwiseOnDevices, CrossEntropyEqualsTheReference) {
  struct Sizes {
    int64_t tokens, width, vocab;
    double labelled;
  };
  const auto reference = [](const Tensor& labels) {
    return Function(
        [labels](const vector<Tensor>& t) { return vector<Tensor>{cross_entropy_reference(t[0], t[1], labels.to(t[0].device()))}; });
  };
  const auto counted = [](const Tensor& labels, int64_t labelled) {
    return Function([labels, labelled](const vector<Tensor>& t) {
      return vector<Tensor>{cross_entropy(t[0], t[1], labels.to(t[0].device()), labelled)};
    });
  };
  const auto placed = [](const Tensor& labels) {
    const Tensor rows = (labels >= 0).nonzero().squeeze(1), theirs = labels.index_select(0, rows);
    return Function([rows, theirs](const vector<Tensor>& t) {
      const at::Device device = t[0].device();
      return vector<Tensor>{cross_entropy(t[0], t[1], theirs.to(device), -1, rows.to(device))};
    });
  };
  for (const Sizes& s : {Sizes{0, 4, 5, 1}, Sizes{1, 4, 5, 1}, Sizes{40, 16, 100, 0.5}, Sizes{30, 8, 1, 1}, Sizes{2500, 16, 1009, 0.9},
                         Sizes{300, 16, 2048, 0.9}, Sizes{20, 8, 30, 0}}) {
    torch::manual_seed(29);
    const Tensor labels = torch::randint(s.vocab, {s.tokens}, at::kLong).masked_fill(torch::rand({s.tokens}) >= s.labelled, -100);
    for (const int64_t labelled : {int64_t{-1}, (labels >= 0).sum().item<int64_t>()})
      expect_like_reference(GetParam(), counted(labels, labelled), reference(labels),
                            {random({s.tokens, s.width}), random({s.vocab, s.width}, at::kDouble, 0.3)});
    expect_like_reference(GetParam(), placed(labels), reference(labels),
                          {random({s.tokens, s.width}), random({s.vocab, s.width}, at::kDouble, 0.3)});
  }
  const Tensor labels = torch::tensor({2, -100, 0, 4}, at::kLong);
  for (const Function& loss : {counted(labels, 3), placed(labels)}) EXPECT_TRUE(gradcheck(loss, {random({4, 3}), random({5, 3})}));
}

// TF32 products round their operands to 10 bits: no gradient is further from the truth than that, rare words' included, nor is a mean of
// very many.
TEST_P(PointwiseOnDevices, CrossEntropyWithTf32IsRoundedAsTf32Is) {
  const bool before = at::globalContext().allowTF32CuBLAS();
  at::globalContext().setAllowTF32CuBLAS(true);
  for (const auto& [tokens, vocab, width] : {std::tuple<int64_t, int64_t, int64_t>{1, 5, 8}, {300, 1009, 48}, {5000, 8192, 48}}) {
    torch::manual_seed(37);
    const Tensor labels = torch::randint(vocab / 2, {tokens}, at::kLong).masked_fill(torch::rand({tokens}) < 0.2, -100);
    const Tensor hidden = random({tokens, width}, at::kFloat), weight = random({vocab, width}, at::kFloat, 0.3);
    const auto results = [&](at::ScalarType type, at::DeviceType device) {
      const Tensor x = hidden.to(device, type).requires_grad_(), w = weight.to(device, type).requires_grad_();
      const Tensor loss = cross_entropy(x, w, labels.to(device));
      vector<Tensor> all = torch::autograd::grad({loss}, {x, w});
      all.push_back(loss);
      return all;
    };
    const vector<Tensor> expected = results(at::kDouble, at::kCPU), actual = results(at::kFloat, GetParam());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), at::kFloat);
      EXPECT_TRUE(close(actual[i], expected[i], 1e-3, 1e-12)) << i << " of " << tokens << " tokens";
    }
    // Words that are no label have probabilities alone.
    const Tensor rare = expected[1].slice(0, vocab / 2), rare_there = actual[1].slice(0, vocab / 2);
    EXPECT_TRUE(close(rare_there, rare, 5e-3, 1e-12)) << tokens << " tokens";
  }
  // What fp16 cannot hold gives large gradients, and no infinite ones.
  const Tensor hidden = at::full({2, 8}, 1e6F).to(GetParam()), labels = torch::tensor({0, 1}, at::kLong).to(GetParam());
  const Tensor weight = at::full({5, 8}, 1e-3F).to(GetParam()).requires_grad_();
  EXPECT_TRUE(at::isfinite(torch::autograd::grad({cross_entropy(hidden, weight, labels)}, {weight})[0]).all().item<bool>());
  at::globalContext().setAllowTF32CuBLAS(before);
}

TEST(CrossEntropy, OfEqualLogitsIsTheLogarithmOfTheVocabulary) {
  const Tensor labels = torch::tensor({1, -100, 3}, at::kLong);
  EXPECT_NEAR(cross_entropy(at::zeros({3, 8}), at::ones({50, 8}), labels).item<double>(), std::log(50), 1e-6);
  EXPECT_EQ(cross_entropy(at::zeros({3, 8}), at::ones({50, 8}), at::full({3}, -100, at::kLong)).item<double>(), 0);
}

TEST_P(PointwiseOnDevices, TokenLogProbabilitiesAreThoseOfTheSoftmax) {
  for (const auto& [tokens, vocab] : {std::pair<int64_t, int64_t>{0, 5}, {1, 1}, {40, 100}, {40, 257}, {2500, 1009}}) {
    torch::manual_seed(31);
    const Tensor targets = torch::randint(vocab, {tokens}, at::kLong), hidden = random({tokens, 16}).to(at::kBFloat16),
                 weight = random({vocab, 16}, at::kDouble, 0.3).to(at::kBFloat16);
    const Tensor all = at::linear(hidden.to(at::kDouble), weight.to(at::kDouble)).log_softmax(1);
    const Tensor expected = all.gather(1, targets.unsqueeze(1)).squeeze(1);
    const Tensor padded = at::cat({weight, random({7, 16}, at::kDouble, 3).to(at::kBFloat16)});  // whose last rows would be likely words
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 1e-2}}) {
      const auto there = [&](const Tensor& t) { return t.to(GetParam(), type); };
      for (const Tensor& rows : {weight, padded})
        EXPECT_TRUE(close(token_log_probabilities(there(hidden), there(rows), targets.to(GetParam()), vocab), expected, tolerance)) << type;
    }
  }
  EXPECT_EQ(error_of([] {
              token_log_probabilities(at::zeros({2, 8}), at::zeros({7, 8}), torch::tensor({0, 5}, at::kLong), 5);
            }),
            "token_log_probabilities: targets must be 0..4, got 5");
  EXPECT_EQ(error_of([] {
              token_log_probabilities(at::zeros({2, 8}), at::zeros({7, 8}), torch::tensor({0, 5}, at::kLong), 8);
            }),
            "token_log_probabilities: vocab_size must be 1..7, got 8");
}

TEST(CrossEntropy, HugeLogitsStayFinite) {
  const Tensor hidden = at::full({2, 1}, 1e4F), weight = torch::tensor({{1.0F}, {-1.0F}, {0.5F}}),
               labels = torch::tensor({0, 1}, at::kLong);
  EXPECT_NEAR(cross_entropy(hidden, weight, labels).item<double>(), 1e4, 1);
}

TEST(CrossEntropy, GradientsAreScaledByTheOutputsGradient) {
  const Tensor hidden = random({6, 4}).requires_grad_(), weight = random({5, 4}), labels = torch::tensor({0, 1, 2, 3, 4, -100}, at::kLong);
  const auto gradient = [&](const Tensor& loss) { return torch::autograd::grad({loss}, {hidden})[0]; };
  EXPECT_TRUE(
      close(gradient(cross_entropy(hidden, weight, labels) * 3), gradient(cross_entropy_reference(hidden, weight, labels)) * 3, 1e-12));
}

TEST(Pointwise, ErrorsNameOperatorArgumentAndValue) {
  const Tensor x = at::zeros({4, 8}), positions = at::arange(4);
  EXPECT_EQ(error_of([&] {
              rms_norm_gated(x, at::zeros({8}), 1e-5, at::zeros({4, 7}));
            }),
            "rms_norm_gated: gate must have shape [4, 8], got [4, 7]");
  EXPECT_EQ(error_of([&] { rms_norm(x, at::zeros({7}), 1e-5); }), "rms_norm: weight must have shape [8], got [7]");
  EXPECT_EQ(error_of([&] { swiglu(at::zeros({4, 7})); }), "swiglu: h must have an even number of columns, got 7");
  EXPECT_EQ(error_of([&] {
              rotary_(at::zeros({4, 16}), positions, {2, 8, 5});
            }),
            "rotary_: dim must be even and at most head_dim and 256, got 5 with head_dim 8");
  EXPECT_EQ(error_of([&] { rotary_(at::zeros({5, 16}), positions, {2, 8, 4}); }), "rotary_: positions must have shape [5], got [4]");
  EXPECT_EQ(error_of([&] {
              rotary_(at::zeros({4, 15}), positions, {2, 8, 4});
            }),
            "rotary_: x must have 2 heads of 8 columns, got 15 columns");
  EXPECT_EQ(error_of([&] {
              rotary_(at::zeros({1, 16}).expand({4, 16}), positions, {2, 8, 4});
            }),
            "rotary_: columns of x must lie side by side, and its rows apart");
  EXPECT_EQ(error_of([&] { ops::linear(x, at::zeros({3, 7})); }), "linear: weight must have shape [any, 8], got [3, 7]");
  EXPECT_EQ(error_of([&] { ops::linear(x, at::zeros({3, 8}, at::kBFloat16)); }), "linear: weight must be Float, got BFloat16");
  const Tensor labels = torch::tensor({0, 1, 9, -100}, at::kLong);
  EXPECT_EQ(error_of([&] { cross_entropy(x, at::zeros({5, 8}), labels); }), "cross_entropy: labels must be -100 or 0..4, got 9");
  EXPECT_EQ(error_of([&] { cross_entropy(x, at::zeros({5, 8}), labels.to(at::kInt)); }), "cross_entropy: labels must be Long, got Int");
  EXPECT_EQ(error_of([&] {
              cross_entropy(x, at::zeros({9, 8}), labels, 4);
            }),
            "cross_entropy: labelled must be the number of labels, 3, or -1, got 4");
  EXPECT_EQ(error_of([&] { cross_entropy(x, at::zeros({9, 8}), labels, 5); }), "cross_entropy: labelled must be -1 or 0..4, got 5");
  const auto error_of_rows = [&](const Tensor& rows, const Tensor& theirs, int64_t labelled) {
    return error_of([&] { cross_entropy(x, at::zeros({9, 8}), theirs, labelled, rows); });
  };
  const Tensor rows = torch::tensor({1, 3}, at::kLong), theirs = torch::tensor({0, 8}, at::kLong);
  EXPECT_EQ(error_of_rows(rows, theirs, 1), "cross_entropy: labelled must be -1 or 2, got 1");
  EXPECT_EQ(error_of_rows(rows, labels, -1), "cross_entropy: labels must have shape [2], got [4]");
  EXPECT_EQ(error_of_rows(rows.to(at::kInt), theirs, -1), "cross_entropy: labelled_rows must be Long, got Int");
  EXPECT_EQ(error_of_rows(rows.flip(0), theirs, -1), "cross_entropy: labelled_rows must ascend");
  EXPECT_EQ(error_of_rows(rows + 1, theirs, -1), "cross_entropy: labelled_rows must be 0..3, got 4");
  EXPECT_EQ(error_of_rows(rows, theirs - 100, -1), "cross_entropy: labels of labelled_rows must be 0..8, got -100");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none;
  const Tensor x = f({5, 6}), labels = torch::tensor({0, 1, -100, 6, 3}, at::kLong);
  return {
      {"rms_norm", {x, f({6}), 1e-5}},
      {"rms_norm_gated", {x, f({6}), 1e-5, x}},
      {"rms_norm_forward", {x, f({6}).to(at::kBFloat16), 1e-5}},
      {"rms_norm_add_", {f({5, 6}), x, f({6}), 1e-5, none}},
      {"rms_norm_add_", {f({5, 6}), x, f({6}), 1e-5, f({5, 6})}},
      {"rms_norm_of_sum", {f({5, 6}), x, f({6}), 1e-5}},
      {"rms_norm_add", {f({5, 6}), x, f({6}), 1e-5}},
      {"rms_norm_add_forward", {f({5, 6}), x, f({6}), 1e-5}},
      {"rms_norm_add", {none, x.to(at::kBFloat16), f({6}).to(at::kBFloat16), 1e-5}},
      {"rms_norm_add_forward", {none, x, f({6}), 1e-5}},
      {"rms_norm_add_backward", {f({5, 6}), f({5, 6}), x, f({6}), f({5})}},
      {"rms_norm_add_backward", {f({5, 6}).to(at::kBFloat16), f({5, 6}).to(at::kBFloat16), x, f({6}).to(at::kBFloat16), f({5})}},
      {"embedding_rows",
       {f({9, 6}), torch::tensor({3, 0, 3, 8, 3}, at::kLong), 0.25, int64_t{7}, torch::tensor(3, at::kLong), int64_t{2}, int64_t{4}}},
      {"embedding_rows", {f({9, 6}), torch::tensor({3, 0, 3, 8, 3}, at::kLong), 0.0, int64_t{0}, none, int64_t{0}, int64_t{0}}},
      {"embedding_backward_", {f({9, 6}), f({5, 6}), torch::tensor({3, 0, 3, 8, 3}, at::kLong)}},
      {"embedding_step_", {at::arange(4), torch::tensor({2, 0}, at::kLong), f({9, 6}), torch::tensor({3, 8}, at::kLong)}},
      {"embedding_tokens_",
       {at::arange(4), torch::tensor({2}, at::kLong), f({9, 6}), torch::tensor({3, 8, 1}, at::kLong), at::zeros({2}, at::kLong),
        int64_t{2}}},
      {"rms_norm_backward", {f({5, 6}), x, f({6}), f({5})}},
      {"swiglu", {x}},
      {"swiglu_backward", {f({5, 3}), x}},
      {"rotary_", {f({5, 20}), at::arange(1, 6), int64_t{2}, int64_t{8}, int64_t{4}, 100.0, true, false}},
      {"linear", {x, f({7, 6}), f({7})}},
      {"linear", {x, f({7, 6}), none}},
      {"linear_swiglu", {x, f({8, 6}), none}},
      {"gated_mlp", {x, f({8, 6}), f({7, 4})}},
      {"cross_entropy", {x, f({7, 6}), labels, int64_t{-1}, none}},
      {"cross_entropy", {x, f({7, 6}), labels.narrow(0, 0, 2), int64_t{-1}, torch::tensor({1, 4}, at::kLong)}},
      {"cross_entropy_forward", {x, f({7, 6}), labels, int64_t{4}, none, true, false}},
      {"cross_entropy_forward", {x, f({7, 6}), labels.clamp_min(0), int64_t{5}, none, true, true}},
      {"cross_entropy_forward", {x, f({7, 6}), labels.narrow(0, 0, 2), int64_t{2}, torch::tensor({1, 4}, at::kLong), true, true}},
      {"token_log_probabilities", {x, f({7, 6}), labels.clamp_min(0), 7}},
  };
}

const DefineSchemaCases kSchemaCases("pointwise", schema_cases);

}  // namespace pointwise_test
}  // namespace based::ops
