#include "based/ops/conv/diagonal_filter.h"
#include "based/ops/conv/gated_long_conv.h"
#include "based/ops/conv/long_conv.h"
#include "based/ops/conv/projected_conv.h"
#include "based/ops/conv/short_conv.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace convolution_test {

using namespace testing;
using std::vector;

struct ShortCase {
  vector<int64_t> lengths;
  int64_t channels = 6, taps = 3;
  bool silu = true, bias = true, gate = true, initial = false, adds_input = false;
};

struct ShortInputs {
  vector<Tensor> tensors;  // x, weight and, where there are such, bias, gate, initial_state
  Tensor cu_seqlens;
  ShortCase options;
};

ShortInputs make_inputs(const ShortCase& c) {
  torch::manual_seed(13);
  const Tensor cu_seqlens = offsets(c.lengths);
  const int64_t tokens = cu_seqlens[-1].item<int64_t>(), rows = static_cast<int64_t>(c.lengths.size());
  const auto representable = [](at::IntArrayRef sizes) { return random(sizes).to(at::kBFloat16).to(at::kDouble); };
  ShortInputs in{{representable({tokens, c.channels}), representable({c.channels, c.taps})}, cu_seqlens, c};
  if (c.bias) in.tensors.push_back(representable({c.channels}));
  if (c.gate) in.tensors.push_back(representable({tokens, c.channels}));
  if (c.initial) in.tensors.push_back(representable({rows, c.channels, c.taps - 1}));
  return in;
}

vector<Tensor> as_type(const ShortInputs& in, at::ScalarType type) {
  vector<Tensor> result;
  for (size_t i = 0; i < in.tensors.size(); ++i) {
    const bool state = in.options.initial && i + 1 == in.tensors.size();
    result.push_back(in.tensors[i].to(state && type == at::kBFloat16 ? at::kFloat : type));
  }
  return result;
}

Function calling(const ShortInputs& in, decltype(&short_conv) op = short_conv) {
  return [=, c = in.options, cu_seqlens = in.cu_seqlens](const vector<Tensor>& t) {
    size_t next = 2;
    std::optional<Tensor> bias, gate, initial;
    if (c.bias) bias = t[next++];
    if (c.gate) gate = t[next++];
    if (c.initial) initial = t[next++];
    const auto [y, state] = op(t[0], t[1], bias, gate, c.silu, cu_seqlens.to(t[0].device()), initial, c.adds_input);
    return vector<Tensor>{y, state};
  };
}

const vector<ShortCase> kShortCases = {
    {{}},
    {{0}},
    {{1}},
    {{2}},
    {{63, 64, 65}, 32, 3},
    {{0, 1, 0, 70, 2, 2, 0}, 5, 4, true, true, true, true},
    {{1, 1, 3}, 7, 8, false, false, true, true},
    {{255, 257}, 33, 3, true, false, true, false},
    {{40, 9}, 4, 1, true, true, false, true},
    {{2048}, 64, 3, true, true, true, true},
    {{256, 256}, 48, 4, false, true, false, false},
    {{256, 0, 1, 2, 257}, 48, 3, false, true, true, true, true},
    {{63, 65}, 33, 4, true, true, true, false, true},
    {{40, 9}, 4, 1, false, false, false, false, true},
};

class ShortConvCases : public ::testing::TestWithParam<std::tuple<ShortCase, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Lengths, ShortConvCases, ::testing::Combine(::testing::ValuesIn(kShortCases), ::testing::ValuesIn(kDevices)),
                         case_and_device<ShortCase>);

TEST_P(ShortConvCases, KernelsEqualTheDoubleReference) {
  const NanFilledMemory nan_filled;
  const ShortInputs in = make_inputs(std::get<0>(GetParam()));
  const Function op = on_device(calling(in), std::get<1>(GetParam()));
  const auto expected = calling(in, short_conv_reference)(in.tensors);
  const vector<Tensor> cotangents = random_like(expected);
  const auto expected_gradients = gradients(calling(in, short_conv_reference), in.tensors, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const vector<Tensor> inputs = as_type(in, type);
    const auto actual = op(inputs);
    vector<Tensor> typed_cotangents;
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << type << ", output " << i;
      typed_cotangents.push_back(cotangents[i].to(actual[i].scalar_type()));
    }
    const auto actual_gradients = gradients(op, inputs, typed_cotangents);
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(close(actual_gradients[i], expected_gradients[i], tolerance)) << type << ", gradient " << i;
  }
}

struct ProjectedCase {
  vector<int64_t> lengths;
  int64_t channels = 48, taps = 3;
  bool in_bias = true, bias = true, initial = true;
  at::ScalarType type = at::kBFloat16;
};

// The operator as a function of x, in_weight, weight and, where there are such, the biases and the initial state.
Function projecting(const ProjectedCase& c, decltype(&projected_conv) op) {
  return [=, cu_seqlens = offsets(c.lengths)](const vector<Tensor>& t) {
    std::optional<Tensor> in_bias, bias, initial;
    size_t next = 3;
    if (c.in_bias) in_bias = t[next++];
    if (c.bias) bias = t[next++];
    if (c.initial) initial = t[next];
    const auto [y, state] = op(t[0], t[1], in_bias, t[2], bias, cu_seqlens.to(t[0].device()), initial);
    return vector<Tensor>{y, state};
  };
}

vector<Tensor> projected_inputs(const ProjectedCase& c, int64_t in) {
  torch::manual_seed(29);
  const int64_t tokens = offsets(c.lengths)[-1].item<int64_t>(), rows = static_cast<int64_t>(c.lengths.size());
  vector<Tensor> t{random({tokens, in}), random({2 * c.channels, in}) / std::sqrt(static_cast<double>(in)), random({c.channels, c.taps})};
  if (c.in_bias) t.push_back(random({2 * c.channels}));
  if (c.bias) t.push_back(random({c.channels}));
  if (c.initial) t.push_back(random({rows, c.channels, c.taps - 1}));
  for (Tensor& x : t) x = x.to(at::kBFloat16).to(at::kDouble);
  return t;
}

BASED_ON_EVERY_DEVICE(ProjectedConvs);

TEST_P(ProjectedConvs, EqualTheDoubleReference) {
  // Rows that end near multiples of the 32 tokens of a thread; numbers of taps and channels, and types, without a fast kernel.
  const vector<int64_t> short_rows{0, 1, 2, 28, 1, 0, 1, 29, 2, 33, 63, 3, 128};
  for (const ProjectedCase& c :
       {ProjectedCase{short_rows}, ProjectedCase{{300}, 64, 4}, ProjectedCase{short_rows, 40, 4, true, false, false},
        ProjectedCase{{70, 2}, 48, 3, false}, ProjectedCase{{}}, ProjectedCase{{200}, 37, 2}, ProjectedCase{{31, 65}, 48, 9},
        ProjectedCase{short_rows, 48, 3, true, true, true, at::kFloat}, ProjectedCase{{9, 40}, 6, 3, true, true, true, at::kDouble}}) {
    const NanFilledMemory nan_filled;
    const vector<Tensor> exact = projected_inputs(c, 24);
    const Function op = on_device(projecting(c, projected_conv), GetParam());
    const auto expected = projecting(c, projected_conv_reference)(exact);
    const vector<Tensor> cotangents = random_like(expected);
    const auto expected_gradients = gradients(projecting(c, projected_conv_reference), exact, cotangents);
    const bool is_bf16 = c.type == at::kBFloat16;
    const double tolerance = is_bf16 ? 2e-2 : 1e-5;
    vector<Tensor> typed, typed_cotangents;
    for (size_t i = 0; i < exact.size(); ++i)
      typed.push_back(exact[i].to(c.initial && i + 1 == exact.size() && is_bf16 ? at::kFloat : c.type));
    const auto actual = op(typed);
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << "output " << i << " of " << exact[0].sizes();
      typed_cotangents.push_back(cotangents[i].to(actual[i].scalar_type()));
    }
    const auto actual_gradients = gradients(op, typed, typed_cotangents);
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_TRUE(close(actual_gradients[i], expected_gradients[i], tolerance, 1e-2)) << "gradient " << i << " of " << exact[0].sizes();
    if (c.in_bias && is_bf16) {
      EXPECT_TRUE(same_bits(gradients(op, typed, typed_cotangents)[3], actual_gradients[3]));
    }
  }
}

// Includes rows shorter than the taps, and sizes for both kernels: with and without a loop over tokens.
TEST_P(ProjectedConvs, PrefillsGoOnFromSlots) {
  const at::NoGradGuard no_grad;
  for (const ProjectedCase& c : {ProjectedCase{{70, 0, 1, 200}}, ProjectedCase{{5, 1}, 37, 4}, ProjectedCase{{40, 3}, 48, 3, false, false},
                                 ProjectedCase{{40, 3}, 48, 3, true, true, true, at::kFloat}}) {
    const NanFilledMemory nan_filled;
    const vector<Tensor> exact = projected_inputs(c, 24);
    const auto rows = static_cast<int64_t>(c.lengths.size());
    const auto expected = projecting(c, projected_conv_reference)(exact);
    const Tensor slots = torch::arange(rows, 0, -1), cu = offsets(c.lengths);
    Tensor state = at::zeros({rows + 2, c.channels, c.taps - 1}).to(GetParam());
    state.index_copy_(0, slots.to(GetParam()), exact.back().to(at::kFloat).to(GetParam()));
    const Tensor before = state.clone();
    vector<Tensor> t;
    for (const Tensor& x : exact) t.push_back(x.to(c.type).to(GetParam()));
    const auto given = [](bool is, const Tensor& x) { return is ? std::optional<Tensor>(x) : std::nullopt; };
    const Tensor y = projected_conv_prefill(t[0], t[1], given(c.in_bias, t[3]), t[2], given(c.bias, t[c.in_bias ? 4 : 3]),
                                            cu.to(GetParam()), state, slots.to(GetParam()));
    const double tolerance = c.type == at::kBFloat16 ? 2e-2 : 1e-5;
    EXPECT_TRUE(close(y, expected[0], tolerance)) << exact[0].sizes();
    EXPECT_TRUE(close(state.index_select(0, slots.to(GetParam())), expected[1], tolerance)) << exact[0].sizes();
    EXPECT_TRUE(same_bits(state[0], before[0]) && same_bits(state[rows + 1], before[rows + 1]));
  }
}

TEST(ProjectedConv, GradcheckAndErrors) {
  const ProjectedCase c{{4, 0, 1, 5}, 2};
  EXPECT_TRUE(gradcheck(projecting(c, projected_conv), projected_inputs(c, 3)));
  const Tensor x = at::zeros({3, 4}), cu = torch::tensor({0, 3}, at::kLong);
  EXPECT_EQ(error_of([&] {
              projected_conv(x, at::zeros({5, 4}), {}, at::zeros({2, 3}), {}, cu);
            }),
            "projected_conv: in_weight must have shape [4, any], got [5, 4]");
}

TEST(ShortConv, ReferenceFollowsTheFormula) {
  const ShortInputs in = make_inputs({{4, 2}, 3, 3, true, true, true, true});
  const Tensor &x = in.tensors[0], &weight = in.tensors[1], &bias = in.tensors[2], &gate = in.tensors[3], &state = in.tensors[4];
  const auto out = calling(in)(in.tensors);
  const auto input = [&](int64_t row, int64_t t, int64_t c) {  // token t of a row; t < 0 is in the initial state
    return t < 0 ? state[row][c][t + 2].item<double>() : x[row == 0 ? t : 4 + t][c].item<double>();
  };
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t t = 0; t < (row == 0 ? 4 : 2); ++t)
      for (int64_t c = 0; c < 3; ++c) {
        double sum = bias[c].item<double>();
        for (int64_t j = 0; j < 3; ++j) sum += weight[c][j].item<double>() * input(row, t - 2 + j, c);
        const int64_t token = row == 0 ? t : 4 + t;
        EXPECT_NEAR(out[0][token][c].item<double>(), sum / (1 + std::exp(-sum)) * gate[token][c].item<double>(), 1e-12);
      }
  for (int64_t c = 0; c < 3; ++c) {
    EXPECT_EQ(out[1][0][c][0].item<double>(), input(0, 2, c));
    EXPECT_EQ(out[1][1][c][1].item<double>(), input(1, 1, c));
  }
}

TEST(ShortConv, Gradcheck) {
  for (const ShortCase& c : {ShortCase{{4, 0, 1, 5}, 2, 3, true, true, true, true}, ShortCase{{3, 3}, 3, 4, false, false, false, true}}) {
    const ShortInputs in = make_inputs(c);
    EXPECT_TRUE(gradcheck(calling(in), in.tensors));
  }
}

BASED_ON_EVERY_DEVICE(ShortConvSteps);

TEST_P(ShortConvSteps, EqualTheParallelForm) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const ShortCase& c : {ShortCase{{9}, 20, 4, true, true, true, true}, ShortCase{{9}, 20, 1, false, false, true, true}}) {
    const ShortInputs in = make_inputs(c);
    const auto expected = calling(in)(in.tensors);
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 2e-2}}) {
      vector<Tensor> t;
      for (const Tensor& x : as_type(in, type)) t.push_back(x.to(device));
      Tensor state = at::zeros({3, c.channels, c.taps - 1}, t.back().options());
      state[2].copy_(t.back()[0]);
      Tensor y = at::full_like(t[0], NAN);
      for (int64_t token = 0; token < 9; ++token) {
        const auto one = [&](const Tensor& x) { return x.narrow(0, token, 1); };
        const std::optional<Tensor> bias = c.bias ? std::optional(t[2]) : std::nullopt;
        y[token].copy_(
            short_conv_step(one(t[0]), t[1], bias, one(t[c.bias ? 3 : 2]), c.silu, state, torch::tensor({2}, at::kLong).to(device))[0]);
      }
      EXPECT_TRUE(close(y, expected[0], tolerance)) << type;
      EXPECT_TRUE(close(state[2], expected[1][0], tolerance)) << type;
    }
  }
}

TEST_P(ShortConvSteps, DependOnNoOtherRow) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(5);
    const at::ScalarType sums = type == at::kDouble ? at::kDouble : at::kFloat;
    const auto there = [&](at::IntArrayRef sizes, at::ScalarType dtype) { return random(sizes, dtype).to(device); };
    const Tensor start = there({9, 37, 3}, sums), x = there({5, 37}, type), gate = there({5, 37}, type), weight = there({37, 4}, type);
    const Tensor bias = there({37}, type), slot = torch::tensor({7, 0, 3, 8, 5}, at::kLong).to(device);
    Tensor together = start.clone();
    const Tensor y = short_conv_step(x, weight, bias, gate, true, together, slot);
    for (int64_t row = 0; row < 5; ++row) {
      Tensor alone = start.clone();
      const auto one = [&](const Tensor& t) { return t.narrow(0, row, 1).clone(); };
      EXPECT_TRUE(same_bits(short_conv_step(one(x), weight, bias, one(gate), true, alone, one(slot)), one(y)));
      EXPECT_TRUE(same_bits(alone[slot[row].item<int64_t>()], together[slot[row].item<int64_t>()]));
    }
    EXPECT_TRUE(same_bits(together[1], start[1]));
  }
}

TEST_P(ShortConvSteps, PrefillsGoOnFromSlots) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(8);
    const auto there = [&](at::IntArrayRef sizes, at::ScalarType dtype) { return random(sizes, dtype).to(device); };
    const Tensor start = there({6, 36, 2}, type == at::kDouble ? at::kDouble : at::kFloat), x = there({75, 36}, type);
    const Tensor gate = there({75, 36}, type), weight = there({36, 3}, type), bias = there({36}, type);
    const Tensor cu = offsets({70, 1, 0, 4}).to(device), slots = torch::tensor({5, 0, 3, 2}, at::kLong).to(device);
    Tensor state = start.clone();
    const Tensor y = short_conv_prefill(x, weight, bias, gate, true, cu, state, slots);
    const auto [expected, last] = short_conv(x, weight, bias, gate, true, cu, start.index_select(0, slots));
    EXPECT_TRUE(same_bits(y, expected)) << type;
    EXPECT_TRUE(same_bits(state, start.index_copy(0, slots, last))) << type;
  }
}

TEST(ShortConv, ColumnSlicesEqualCopies) {
  torch::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor wide = random({70, 66}, type), weight = random({33, 3}, type), cu = offsets({50, 20});
    const Function op = [&](const vector<Tensor>& t) {
      const Tensor h = t[0];
      return vector<Tensor>{std::get<0>(short_conv(h.narrow(1, 0, 33), t[1], {}, h.narrow(1, 33, 33), true, cu))};
    };
    const Function copies = [&](const vector<Tensor>& t) {
      return vector<Tensor>{
          std::get<0>(short_conv(t[0].narrow(1, 0, 33).contiguous(), t[1], {}, t[0].narrow(1, 33, 33).contiguous(), true, cu))};
    };
    const vector<Tensor> inputs{wide, weight}, expected = copies(inputs), cotangents = random_like(expected);
    EXPECT_TRUE(same_bits(op(inputs)[0], expected[0]));
    const auto a = gradients(op, inputs, cotangents), b = gradients(copies, inputs, cotangents);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i]));
  }
}

TEST(ShortConv, ErrorsNameOperatorArgumentAndValue) {
  const Tensor x = at::zeros({4, 8}), weight = at::zeros({8, 3}), cu = offsets({4});
  const auto call = [&](const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias, const std::optional<Tensor>& gate,
                        const std::optional<Tensor>& initial) {
    return error_of([&] { short_conv(a, b, bias, gate, true, cu, initial); });
  };
  EXPECT_EQ(call(x, at::zeros({7, 3}), {}, {}, {}), "short_conv: weight must have shape [8, any], got [7, 3]");
  EXPECT_EQ(call(x, at::zeros({8, 200}), {}, {}, {}), "short_conv: taps must be 1..128, got 200");
  EXPECT_EQ(call(x, weight, at::zeros({9}), {}, {}), "short_conv: bias must have shape [8], got [9]");
  EXPECT_EQ(call(x, weight, {}, at::zeros({4, 8}, at::kDouble), {}), "short_conv: gate must be Float, got Double");
  EXPECT_EQ(call(x, weight, {}, {}, at::zeros({1, 8, 3})), "short_conv: initial_state must have shape [1, 8, 2], got [1, 8, 3]");
  EXPECT_EQ(call(x.to(at::kBFloat16), weight.to(at::kBFloat16), {}, {}, at::zeros({1, 8, 2}, at::kBFloat16)),
            "short_conv: initial_state must be Float, got BFloat16");
}

struct LongCase {
  vector<int64_t> lengths, history;  // history: tokens before each row, none where empty
  int64_t channels, taps;
};

const vector<LongCase> kLongCases = {
    {{}, {}, 3, 5},
    {{0}, {}, 3, 5},
    {{1}, {}, 3, 5},
    {{63, 64, 65}, {}, 3, 65},
    {{7, 7, 7}, {}, 3, 4},
    {{9}, {}, 2, 100},
    {{5, 0, 3}, {4, 2, 0}, 3, 6},
    {{1}, {300}, 2, 301},
    {{2048}, {}, 2, 2048},
};

Function calling(const LongCase& c, decltype(&long_conv) op) {
  return [=, cu_here = offsets(c.lengths), cu_history = offsets(c.history)](const vector<Tensor>& t) {
    const Tensor cu = cu_here.to(t[0].device());
    if (t.size() < 3) return vector<Tensor>{op(t[0], t[1], cu, {}, {})};
    return vector<Tensor>{op(t[0], t[1], cu, t[2], cu_history.to(t[0].device()))};
  };
}

vector<Tensor> make_inputs(const LongCase& c) {
  torch::manual_seed(17);
  vector<Tensor> in{random({offsets(c.lengths)[-1].item<int64_t>(), c.channels}), random({c.channels, c.taps})};
  if (!c.history.empty()) in.push_back(random({offsets(c.history)[-1].item<int64_t>(), c.channels}));
  return in;
}

BASED_ON_EVERY_DEVICE(LongConvForms);

TEST_P(LongConvForms, FourierEqualsTheDirectSum) {
  for (const LongCase& c : kLongCases) {
    const vector<Tensor> in = make_inputs(c);
    const Tensor expected = calling(c, long_conv_reference)(in)[0];
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
      vector<Tensor> typed;
      for (const Tensor& t : in) typed.push_back(t.to(type));
      EXPECT_TRUE(close(on_device(calling(c, long_conv), GetParam())(typed)[0], expected, tolerance))
          << c.lengths.size() << " rows, " << type;
    }
  }
}

TEST(LongConv, DirectSumFollowsTheFormula) {
  const LongCase c{{3, 2}, {2, 0}, 1, 4};
  const vector<Tensor> in = make_inputs(c);
  const Tensor y = calling(c, long_conv_reference)(in)[0].flatten(), x = in[0].flatten(), f = in[1].flatten(), h = in[2].flatten();
  const vector<Tensor> rows{at::cat({h, x.narrow(0, 0, 3)}), x.narrow(0, 3, 2)};
  const auto at_end = [&](const Tensor& row, int64_t t) {
    double sum = 0;
    for (int64_t j = 0; j < 4 && j <= t; ++j) sum += f[j].item<double>() * row[t - j].item<double>();
    return sum;
  };
  for (int64_t t = 0; t < 3; ++t) EXPECT_NEAR(y[t].item<double>(), at_end(rows[0], t + 2), 1e-13);
  for (int64_t t = 0; t < 2; ++t) EXPECT_NEAR(y[3 + t].item<double>(), at_end(rows[1], t), 1e-13);
}

TEST(LongConv, Gradcheck) {
  for (const LongCase& c : {LongCase{{4, 0, 5}, {3, 1, 0}, 2, 4}, LongCase{{3, 3}, {}, 2, 9}}) {
    EXPECT_TRUE(gradcheck(calling(c, long_conv), make_inputs(c)));
    EXPECT_TRUE(gradcheck(calling(c, long_conv_reference), make_inputs(c)));
  }
}

struct GatedCase {
  vector<int64_t> lengths;
  int64_t channels, heads, taps;
  bool q = true, v = true;
};

// q, k, v and the filter; q, k and v as columns of one tensor in the order of Hyena's.
Function calling(const GatedCase& c, bool reference) {
  return [=, cu = offsets(c.lengths)](const vector<Tensor>& t) {
    const auto parts = t[0].split(c.channels, 1);
    const std::optional<Tensor> q = c.q ? std::optional(parts[1]) : std::nullopt, v = c.v ? std::optional(parts[2]) : std::nullopt;
    if (reference) return vector<Tensor>{gated_long_conv_reference(q, parts[0], v, t[1], c.lengths[0])};
    const vector<int64_t> starts(cu.data_ptr<int64_t>(), cu.data_ptr<int64_t>() + cu.numel());
    return vector<Tensor>{gated_long_conv(q, parts[0], v, t[1], starts)};
  };
}

vector<Tensor> make_inputs(const GatedCase& c) {
  torch::manual_seed(23);
  const auto representable = [](at::IntArrayRef sizes) { return random(sizes).to(at::kBFloat16).to(at::kDouble); };
  return {representable({offsets(c.lengths)[-1].item<int64_t>(), 3 * c.channels}), representable({c.heads, c.taps})};
}

BASED_ON_EVERY_DEVICE(GatedLongConvs);

TEST_P(GatedLongConvs, EqualTheDoubleReference) {
  for (const GatedCase& c :
       {GatedCase{{1, 1}, 8, 8, 1}, GatedCase{{70, 70, 70}, 16, 8, 70}, GatedCase{{100}, 16, 16, 30}, GatedCase{{300, 300}, 8, 4, 300},
        GatedCase{{9, 9}, 24, 24, 40}, GatedCase{{20, 20}, 6, 3, 20}, GatedCase{{20}, 16, 4, 20}, GatedCase{{20}, 16, 2, 20},
        GatedCase{{300, 300, 300}, 16, 2, 300}, GatedCase{{520}, 16, 1, 40}, GatedCase{{30, 30}, 16, 1, 50},
        GatedCase{{300, 300}, 16, 16, 64, false, false}, GatedCase{{90}, 8, 8, 90, false, true}, GatedCase{{90}, 8, 8, 90, true, false}}) {
    const NanFilledMemory nan_filled;
    const vector<Tensor> in = make_inputs(c);
    const auto expected = calling(c, true)(in);
    const vector<Tensor> cotangents = random_like(expected);
    const auto expected_gradients = gradients(calling(c, true), in, cotangents);
    const Function op = on_device(calling(c, false), GetParam());
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 2e-2}}) {
      const vector<Tensor> typed{in[0].to(type), in[1].to(type == at::kDouble ? type : at::kFloat)};
      EXPECT_TRUE(close(op(typed)[0], expected[0], tolerance)) << in[0].sizes() << ", " << type;
      const auto found = gradients(op, typed, {cotangents[0].to(type)});
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(close(found[i], expected_gradients[i], tolerance)) << "gradient " << i << " of " << in[0].sizes() << ", " << type;
    }
  }
}

TEST_P(GatedLongConvs, RowsOfSeveralLengthsAreDoneByLength) {
  const GatedCase c{{5, 5, 0, 17, 1, 0}, 8, 4, 17};
  const vector<Tensor> in = make_inputs(c);
  const Tensor y = on_device(calling(c, false), GetParam())(in)[0];
  int64_t first = 0;
  for (const int64_t length : c.lengths) {
    if (length == 0) continue;
    const Tensor alone = calling(GatedCase{{length}, 8, 4, 17}, true)({in[0].narrow(0, first, length), in[1]})[0];
    EXPECT_TRUE(close(y.narrow(0, first, length), alone, 1e-12));
    first += length;
  }
  EXPECT_EQ(on_device(calling({{0}, 8, 4, 3}, false), GetParam())({in[0].narrow(0, 0, 0), in[1]})[0].size(0), 0);
}

TEST(GatedLongConv, ReferenceFollowsTheFormula) {
  const GatedCase c{{4}, 4, 2, 3};
  const vector<Tensor> in = make_inputs(c);
  const Tensor y = calling(c, true)(in)[0], k = in[0].narrow(1, 0, 4), q = in[0].narrow(1, 4, 4), v = in[0].narrow(1, 8, 4);
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t channel = 0; channel < 4; ++channel) {
      double sum = 0;
      for (int64_t s = std::max<int64_t>(0, t - 2); s <= t; ++s)
        for (int64_t i = channel / 2 * 2; i < channel / 2 * 2 + 2; ++i)
          sum += (q[t][i] * in[1][channel / 2][t - s] * k[s][i] * v[s][channel]).item<double>();
      EXPECT_NEAR(y[t][channel].item<double>(), sum, 1e-12);
    }
}

TEST(GatedLongConv, GradcheckAndErrors) {
  for (const GatedCase& c : {GatedCase{{4, 4}, 4, 2, 3}, GatedCase{{3, 1}, 2, 2, 9}, GatedCase{{4}, 2, 2, 3, false, false}})
    EXPECT_TRUE(gradcheck(calling(c, false), make_inputs(c)));
  const Tensor x = at::zeros({6, 8});
  EXPECT_EQ(error_of([&] {
              gated_long_conv(x, x, x, at::zeros({3, 5}), 3);
            }),
            "gated_long_conv: channels, 8, must be a multiple of the filters, got 3");
  EXPECT_EQ(error_of([&] {
              gated_long_conv(x, x, x, at::zeros({4, 5}), 4);
            }),
            "gated_long_conv: tokens, 6, must be a multiple of the length, got 4");
  EXPECT_EQ(error_of([&] {
              gated_long_conv({}, x, x, at::zeros({4, 5}), 3);
            }),
            "gated_long_conv: q may be absent only where each channel has a filter, got 4 of 8");
}

Function filtering(int64_t taps, bool reference) {
  return [=](const vector<Tensor>& t) {
    const DiagonalPoles poles{t[0], t[1], t[2], t[3], t[4], t[5]};
    return vector<Tensor>{reference ? diagonal_filter_reference(poles, taps) : diagonal_filter(poles, taps)};
  };
}

vector<Tensor> make_poles(int64_t groups, int64_t poles) {
  torch::manual_seed(31);
  vector<Tensor> t{random({groups}) - 3,
                   random({groups, poles}, at::kDouble, 0.3),
                   at::arange(poles, at::kDouble).repeat({groups, 1}) * 3,
                   random({groups, poles, 2}),
                   random({groups, poles, 2}),
                   random({groups})};
  for (Tensor& x : t) x = x.to(at::kBFloat16).to(at::kDouble);
  return t;
}

BASED_ON_EVERY_DEVICE(DiagonalFilters);

TEST_P(DiagonalFilters, EqualTheDoubleReference) {
  for (const auto& [groups, poles, taps] : {std::tuple<int64_t, int64_t, int64_t>{3, 4, 50}, {1, 1, 1}, {2, 40, 300}}) {
    const NanFilledMemory nan_filled;
    const vector<Tensor> in = make_poles(groups, poles);
    const auto expected = filtering(taps, true)(in);
    const vector<Tensor> cotangents = random_like(expected);
    const auto expected_gradients = gradients(filtering(taps, true), in, cotangents);
    const Function op = on_device(filtering(taps, false), GetParam());
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-9}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 1e-2}}) {
      vector<Tensor> typed;
      for (const Tensor& x : in) typed.push_back(x.to(type));
      EXPECT_TRUE(close(op(typed)[0], expected[0], tolerance)) << poles << " poles, " << type;
      const auto found = gradients(op, typed, {cotangents[0].to(type == at::kDouble ? type : at::kFloat)});
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(close(found[i], expected_gradients[i], tolerance)) << "gradient " << i << ", " << poles << " poles, " << type;
    }
  }
}

TEST(DiagonalFilter, IsTheImpulseResponse) {
  const vector<Tensor> in = make_poles(1, 2);
  const Tensor filter = filtering(6, true)(in)[0];
  const DiscretePoles poles = discretised({in[0], in[1], in[2], in[3], in[4], in[5]});
  Tensor h = poles.b;
  for (int64_t t = 0; t < 6; ++t, h = poles.a * h) {
    const double d = t == 0 ? in[5].item<double>() : 0;
    EXPECT_NEAR(filter[0][t].item<double>(), at::real((poles.c * h).sum()).item<double>() + d, 1e-12);
  }
}

TEST(DiagonalFilter, GradcheckAndErrors) {
  EXPECT_TRUE(gradcheck(filtering(5, false), make_poles(2, 3)));
  vector<Tensor> in = make_poles(2, 3);
  in[3] = at::zeros({2, 4, 2}, at::kDouble);
  EXPECT_EQ(error_of([&] { filtering(5, false)(in); }), "diagonal_filter: B must have shape [2, 3, 2], got [2, 4, 2]");
}

TEST(LongConv, ErrorsNameOperatorArgumentAndValue) {
  const Tensor x = at::zeros({4, 8}), cu = offsets({4});
  EXPECT_EQ(error_of([&] { long_conv(x, at::zeros({7, 3}), cu); }), "long_conv: filter must have shape [8, any], got [7, 3]");
  EXPECT_EQ(error_of([&] { long_conv(x, at::zeros({8, 3}), cu, x); }), "long_conv: history and cu_history must be given together");
  EXPECT_EQ(error_of([&] {
              long_conv(x, at::zeros({8, 3}), cu, x, offsets({3}));
            }),
            "long_conv: cu_history must end at the number of tokens, 4, got 3");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none, cu = two_rows(), slots = five_slots();
  const Tensor x = f({5, 6}), weight = f({6, 3});
  return {
      {"short_conv", {x, weight, f({6}), f({5, 6}), true, cu, f({2, 6, 2}), false}},
      {"short_conv", {x, weight, none, none, false, cu, none, false}},
      {"short_conv", {x, weight, none, f({5, 6}), false, cu, none, true}},
      {"short_conv_backward", {f({5, 6}), f({2, 6, 2}), x, weight, f({6}), f({5, 6}), true, cu, f({2, 6, 2}), false}},
      {"short_conv_backward", {f({5, 6}), none, x, weight, none, none, false, cu, none, false}},
      {"short_conv_backward", {f({5, 6}), none, x, weight, none, f({5, 6}), false, cu, none, true}},
      {"short_conv_prefill", {x, weight, f({6}), f({5, 6}), true, cu, f({5, 6, 2}), torch::tensor({3, 0}, at::kLong)}},
      {"short_conv_step", {x, weight, f({6}), f({5, 6}), true, f({5, 6, 2}), slots}},
      {"short_conv_tokens", {x, weight, f({6}), f({5, 6}), true, f({5, 6, 2}), torch::tensor({2}, at::kLong), f({2, 6, 2}), int64_t{3}}},
      {"projected_conv", {x, f({8, 6}), f({8}), f({4, 3}), f({4}), cu, f({2, 4, 2})}},
      {"projected_conv", {x, f({8, 6}), none, f({4, 3}), none, cu, none}},
      {"projected_conv_prefill", {x, f({8, 6}), f({8}), f({4, 3}), f({4}), cu, f({5, 4, 2}), torch::tensor({3, 0}, at::kLong)}},
      {"diagonal_filter", {f({3}), f({3, 4}), f({3, 4}), f({3, 4, 2}), f({3, 4, 2}), f({3}), 5}},
      {"diagonal_filter_backward", {f({3, 5}), f({3}), f({3, 4}), f({3, 4}), f({3, 4, 2}), f({3, 4, 2}), f({3}), 5}},
      {"gated_long_conv", {f({6, 8}), f({4, 5}), f({6, 8}), f({6, 8}), 3}},
      {"gated_long_conv", {f({6, 8}), f({8, 5}), none, none, 3}},
      {"gated_long_conv_backward", {f({6, 8}), f({6, 8}), f({4, 5}), f({6, 8}), f({6, 8}), 3}},
      {"gated_long_conv_backward", {f({6, 8}), f({6, 8}), f({8, 5}), none, none, 3}},
      {"long_conv", {x, weight, cu, none, none}},
      {"long_conv", {x, weight, cu, f({4, 6}), offsets({1, 3})}},
  };
}

const DefineSchemaCases kSchemaCases("convolution", schema_cases);

}  // namespace convolution_test
}  // namespace based::ops
