#include "based/ops/scan/selective_scan.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace selective_scan_test {

using namespace testing;
using std::vector;

struct Case {
  vector<int64_t> lengths;
  int64_t channels = 6, state_size = 4, groups = 1;
  bool skip = true, gate = true, bias = true, softplus = true, initial = false;
};

struct Inputs {
  vector<Tensor> tensors;  // x, dt, A_log, B, C and, where there are such, D, z, dt_bias, initial_state
  Tensor cu_seqlens;
  Case options;
};

Inputs make_inputs(const Case& c) {
  torch::manual_seed(19);
  const Tensor cu_seqlens = offsets(c.lengths);
  const int64_t tokens = cu_seqlens[-1].item<int64_t>(), rows = static_cast<int64_t>(c.lengths.size());
  const auto representable = [](at::IntArrayRef sizes, double scale = 1) {
    return random(sizes, at::kDouble, scale).to(at::kBFloat16).to(at::kDouble);
  };
  const Tensor dt = representable({tokens, c.channels});
  Inputs in{{representable({tokens, c.channels}), c.softplus ? dt : dt.abs(), representable({c.channels, c.state_size}, 0.5),
             representable({tokens, c.groups, c.state_size}), representable({tokens, c.groups, c.state_size}, 0.5)},
            cu_seqlens,
            c};
  if (c.skip) in.tensors.push_back(representable({c.channels}));
  if (c.gate) in.tensors.push_back(representable({tokens, c.channels}));
  if (c.bias) in.tensors.push_back(representable({c.channels}, 0.3).abs());
  if (c.initial) in.tensors.push_back(representable({rows, c.channels, c.state_size}));
  return in;
}

vector<Tensor> as_type(const Inputs& in, at::ScalarType type) {
  vector<Tensor> result;
  for (size_t i = 0; i < in.tensors.size(); ++i) {
    const bool state = in.options.initial && i + 1 == in.tensors.size();
    result.push_back(in.tensors[i].to(state && type == at::kBFloat16 ? at::kFloat : type));
  }
  return result;
}

// The optional arguments of a case among its tensors.
struct Given {
  OptionalTensor D, z, dt_bias, initial;
  Given(const Case& c, const vector<Tensor>& t) {
    size_t next = 5;
    if (c.skip) D = t[next++];
    if (c.gate) z = t[next++];
    if (c.bias) dt_bias = t[next++];
    if (c.initial) initial = t[next++];
  }
};

Function calling(const Inputs& in, decltype(&selective_scan) op = selective_scan) {
  return [=, c = in.options, cu_seqlens = in.cu_seqlens](const vector<Tensor>& t) {
    const Given given(c, t);
    const auto [y, state] =
        op({t[0], t[1], t[2], t[3], t[4], given.D, given.z, given.dt_bias, c.softplus}, cu_seqlens.to(t[0].device()), given.initial);
    return vector<Tensor>{y, state};
  };
}

const vector<Case> kCases = {
    {{}},
    {{0}},
    {{1}},
    {{31, 32, 33}, 70, 16},
    {{0, 1, 0, 70, 2, 2, 0}, 5, 3, 1, true, true, true, true, true},
    {{1, 1, 3}, 8, 8, 4, false, false, false, true, true},
    {{130, 127}, 33, 24, 1, true, false, true, false, true},
    {{40, 9}, 6, 4, 6, false, true, false, false, false},
    {{600}, 20, 16, 2, true, true, true, true, true},
};

class SelectiveScanCases : public ::testing::TestWithParam<std::tuple<Case, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Lengths, SelectiveScanCases, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kDevices)),
                         case_and_device<Case>);

TEST_P(SelectiveScanCases, KernelsEqualTheDoubleReference) {
  const NanFilledMemory nan_filled;
  const Inputs in = make_inputs(std::get<0>(GetParam()));
  const Function op = on_device(calling(in), std::get<1>(GetParam()));
  const auto expected = calling(in, selective_scan_reference)(in.tensors);
  const vector<Tensor> cotangents = random_like(expected);
  const auto expected_gradients = gradients(calling(in, selective_scan_reference), in.tensors, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 2e-2}}) {
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

TEST(SelectiveScan, ReferenceFollowsTheFormula) {
  const Case c{{4, 2}, 4, 3, 2, true, true, true, true, true};
  const Inputs in = make_inputs(c);
  const auto out = calling(in, selective_scan_reference)(in.tensors);
  const auto number = [&](size_t tensor, std::initializer_list<int64_t> index) {
    Tensor t = in.tensors[tensor];
    for (const int64_t i : index) t = t[i];
    return t.item<double>();
  };
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t channel = 0; channel < 4; ++channel) {
      vector<double> h;
      for (int64_t s = 0; s < 3; ++s) h.push_back(number(8, {row, channel, s}));
      for (int64_t t = row * 4; t < (row == 0 ? 4 : 6); ++t) {
        const double x = number(0, {t, channel}), gate = number(6, {t, channel});
        const double step = std::log1p(std::exp(number(1, {t, channel}) + number(7, {channel})));
        double y = number(5, {channel}) * x;
        for (int64_t s = 0; s < 3; ++s) {
          double& state = h[static_cast<size_t>(s)];
          state = std::exp(-step * std::exp(number(2, {channel, s}))) * state + step * x * number(3, {t, channel / 2, s});
          y += number(4, {t, channel / 2, s}) * state;
        }
        EXPECT_NEAR(out[0][t][channel].item<double>(), y * gate / (1 + std::exp(-gate)), 1e-12);
      }
      for (int64_t s = 0; s < 3; ++s) EXPECT_NEAR(out[1][row][channel][s].item<double>(), h[static_cast<size_t>(s)], 1e-12);
    }
}

TEST(SelectiveScan, Gradcheck) {
  for (const Case& c : {Case{{4, 0, 1, 5}, 4, 2, 2, true, true, true, true, true}, Case{{3, 3}, 3, 2, 1, false, false, false, false}}) {
    const Inputs in = make_inputs(c);
    EXPECT_TRUE(gradcheck(calling(in), in.tensors));
  }
}

// The chunk states that the backward starts from, also for rows that begin within a chunk.
TEST(SelectiveScan, KeepsTheStateBeforeEachChunk) {
  const at::NoGradGuard no_grad;
  const Inputs in = make_inputs({{40, 0, 5, 32, 33, 64}, 5, 3, 1, true, true, true, true, true});
  const Given given(in.options, in.tensors);
  const auto kept = [&](at::ScalarType type) {
    const vector<Tensor> t = as_type(in, type);
    const Given given_typed(in.options, t);
    const auto [y, state, chunk_states] = call(SelectiveScanForward{
        {{t[0], t[1], t[2], t[3], t[4], given_typed.D, given_typed.z, given_typed.dt_bias, true}, in.cu_seqlens, given_typed.initial}});
    return chunk_states;
  };
  const Tensor exact = kept(at::kDouble), found = kept(at::kFloat);
  ASSERT_EQ(exact.sizes(), found.sizes());
  for (int64_t row = 0; row < 6; ++row) {
    const int64_t start = in.cu_seqlens[row].item<int64_t>(), length = in.cu_seqlens[row + 1].item<int64_t>() - start;
    const int64_t first = kernels::selective_scan_first_chunk(row, start);
    for (int64_t chunk = first; chunk < first + (length + 31) / 32; ++chunk)
      EXPECT_TRUE(close(found[chunk], exact[chunk], 1e-5)) << "row " << row << ", chunk " << chunk;
    if (length > 0) {
      EXPECT_TRUE(same_bits(exact[first], given.initial->select(0, row).t().contiguous())) << "row " << row;
    }
  }
}

BASED_ON_EVERY_DEVICE(SelectiveScanSteps);

TEST_P(SelectiveScanSteps, EqualTheParallelForm) {
  const at::NoGradGuard no_grad;
  for (const Case& c : {Case{{9}, 20, 16, 2, true, true, true, true, true}, Case{{9}, 3, 5, 1, false, false, false, false, true}}) {
    const Inputs in = make_inputs(c);
    const auto expected = calling(in, selective_scan_reference)(in.tensors);
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 2e-2}}) {
      vector<Tensor> t;
      for (const Tensor& x : as_type(in, type)) t.push_back(x.to(GetParam()));
      const Given given(c, t);
      Tensor state = at::zeros({3, c.channels, c.state_size}, t.back().options()), y = at::full_like(t[0], NAN);
      state[2].copy_(t.back()[0]);
      for (int64_t token = 0; token < 9; ++token) {
        const auto one = [&](const Tensor& x) { return x.narrow(0, token, 1); };
        const OptionalTensor z = given.z ? OptionalTensor(one(*given.z)) : std::nullopt;
        y[token].copy_(selective_scan_step({one(t[0]), one(t[1]), t[2], one(t[3]), one(t[4]), given.D, z, given.dt_bias, c.softplus}, state,
                                           torch::tensor({2}, at::kLong).to(GetParam()))[0]);
      }
      EXPECT_TRUE(close(y, expected[0], tolerance)) << type;
      EXPECT_TRUE(close(state[2], expected[1][0], tolerance)) << type;
    }
  }
}

TEST_P(SelectiveScanSteps, DependOnNoOtherRow) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    vector<Tensor> t;
    for (const Tensor& x : as_type(make_inputs({{5}, 37, 7}), type)) t.push_back(x.to(GetParam()));
    const Tensor start = random({9, 37, 7}, type == at::kDouble ? at::kDouble : at::kFloat).to(GetParam());
    const Tensor slot = torch::tensor({7, 0, 3, 8, 5}, at::kLong).to(GetParam());
    Tensor together = start.clone();
    const Tensor y = selective_scan_step({t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]}, together, slot);
    for (int64_t row = 0; row < 5; ++row) {
      Tensor alone = start.clone();
      const auto one = [&](const Tensor& x) { return x.narrow(0, row, 1).clone(); };
      EXPECT_TRUE(same_bits(
          selective_scan_step({one(t[0]), one(t[1]), t[2], one(t[3]), one(t[4]), t[5], one(t[6]), t[7]}, alone, one(slot)), one(y)));
      EXPECT_TRUE(same_bits(alone[slot[row].item<int64_t>()], together[slot[row].item<int64_t>()]));
    }
    EXPECT_TRUE(same_bits(together[1], start[1]));
  }
}

TEST_P(SelectiveScanSteps, PrefillsGoOnFromSlots) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    vector<Tensor> t;
    for (const Tensor& x : as_type(make_inputs({{75}, 36, 5}), type)) t.push_back(x.to(GetParam()));
    const Tensor start = random({6, 36, 5}, type == at::kDouble ? at::kDouble : at::kFloat).to(GetParam());
    const Tensor cu = offsets({70, 1, 0, 4}).to(GetParam()), slots = torch::tensor({5, 0, 3, 2}, at::kLong).to(GetParam());
    const OptionalTensor D = t[5], z = t[6], dt_bias = t[7];
    const SelectiveScanInputs layer{t[0], t[1], t[2], t[3], t[4], D, z, dt_bias};
    Tensor state = start.clone();
    const Tensor y = selective_scan_prefill(layer, cu, state, slots);
    const auto [expected, last] = selective_scan(layer, cu, start.index_select(0, slots));
    EXPECT_TRUE(same_bits(y, expected)) << type;
    EXPECT_TRUE(same_bits(state, start.index_copy(0, slots, last))) << type;
  }
}

// As a mixer has them: B and C beside dt's columns, z beside x; and B and C that no token changes, which take no memory a token.
TEST(SelectiveScan, ViewsEqualCopies) {
  torch::manual_seed(3);
  const Tensor cu = offsets({50, 20}), A_log = random({33, 4}, at::kFloat, 0.5);
  const auto through = [&](bool copies) {
    return [&, copies](const vector<Tensor>& t) {
      const auto as = [&](const Tensor& view) { return copies ? view.contiguous() : view; };
      const Tensor token_columns = t[1].view({70, 3, 4}), constant = t[2].expand({70, 33, 4});
      const OptionalTensor z = as(t[0].narrow(1, 33, 33));
      const Tensor x = as(t[0].narrow(1, 0, 33)), B = as(token_columns.narrow(1, 1, 1)), C = as(token_columns.narrow(1, 2, 1));
      return vector<Tensor>{std::get<0>(selective_scan({x, x, A_log, B, C, {}, z, {}}, cu)),
                            std::get<0>(selective_scan({x, x, A_log, as(constant), as(constant), {}, {}, {}}, cu))};
    };
  };
  const vector<Tensor> inputs{random({70, 66}, at::kFloat), random({70, 12}, at::kFloat), random({33, 4}, at::kFloat)};
  const vector<Tensor> expected = through(true)(inputs), found = through(false)(inputs), cotangents = random_like(expected);
  const auto a = gradients(through(false), inputs, cotangents), b = gradients(through(true), inputs, cotangents);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], expected[i]));
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i]));
}

TEST(SelectiveScan, ErrorsNameOperatorArgumentAndValue) {
  const Tensor x = at::zeros({4, 8}), A_log = at::zeros({8, 3}), B = at::zeros({4, 2, 3}), cu = offsets({4});
  const auto call = [&](const Tensor& of_A, const Tensor& of_B, const OptionalTensor& D, const OptionalTensor& z,
                        const OptionalTensor& initial) {
    return error_of([&] { selective_scan({x, x, of_A, of_B, B, D, z, {}}, cu, initial); });
  };
  EXPECT_EQ(call(at::zeros({7, 3}), B, {}, {}, {}), "selective_scan: A_log must have shape [8, any], got [7, 3]");
  EXPECT_EQ(call(at::zeros({8, 300}), B, {}, {}, {}), "selective_scan: A_log must have 1..256 columns, got 300");
  EXPECT_EQ(call(A_log, at::zeros({4, 3, 3}), {}, {}, {}), "selective_scan: channels, 8, must be a multiple of B's groups, got 3");
  EXPECT_EQ(call(A_log, at::zeros({4, 1, 3}), {}, {}, {}), "selective_scan: C must have shape [4, 1, 3], got [4, 2, 3]");
  EXPECT_EQ(call(A_log, B, at::zeros({9}), {}, {}), "selective_scan: D must have shape [8], got [9]");
  EXPECT_EQ(call(A_log, B, {}, at::zeros({4, 8}, at::kDouble), {}), "selective_scan: z must be Float, got Double");
  EXPECT_EQ(call(A_log, B, {}, {}, at::zeros({1, 8, 2})), "selective_scan: initial_state must have shape [1, 8, 3], got [1, 8, 2]");
  Tensor state = at::zeros({2, 8, 2});
  EXPECT_EQ(error_of([&] {
              selective_scan_step({x, x, A_log, B, B, {}, {}, {}}, state, torch::tensor({0, 1}, at::kLong));
            }),
            "selective_scan_step: state must have shape [any, 8, 3], got [2, 8, 2]");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none, cu = two_rows(), slots = five_slots();
  const Tensor x = f({5, 6}), dt = f({5, 6}), A_log = f({6, 3}), B = f({5, 2, 3}), C = f({5, 2, 3});
  const Tensor chunks = f({kernels::selective_scan_chunks(5, 2), 3, 6});
  return {
      {"selective_scan", {x, dt, A_log, B, C, f({6}), f({5, 6}), f({6}), true, cu, f({2, 6, 3})}},
      {"selective_scan", {x, dt, A_log, B, C, none, none, none, false, cu, none}},
      {"selective_scan_forward", {x, dt, A_log, B, C, f({6}), f({5, 6}), f({6}), true, cu, f({2, 6, 3})}},
      {"selective_scan_backward", {f({5, 6}), f({2, 6, 3}), x, dt, A_log, B, C, f({6}), f({5, 6}), f({6}), true, cu, f({2, 6, 3}), chunks}},
      {"selective_scan_backward", {f({5, 6}), none, x, dt, A_log, B, C, none, none, none, false, cu, none, chunks}},
      {"selective_scan_prefill", {x, dt, A_log, B, C, f({6}), f({5, 6}), f({6}), true, cu, f({5, 6, 3}), torch::tensor({3, 0}, at::kLong)}},
      {"selective_scan_step", {x, dt, A_log, B, C, f({6}), f({5, 6}), f({6}), true, f({5, 6, 3}), slots}},
  };
}

Calls calls(at::Device device) {
  const auto random_on_device = [&](at::IntArrayRef sizes, double scale = 1) { return random(sizes, at::kBFloat16, scale).to(device); };
  const Tensor x = random_on_device({300, 256}), h = random_on_device({300, 512}), weight = random_on_device({256}),
               B = random_on_device({300, 4, 16}, 0.5), A_log = random_on_device({256, 16});
  const Tensor cu = offsets({100, 1, 199}).to(device), slots = torch::tensor({2, 0, 1}, at::kLong).to(device);
  const Tensor state = at::zeros({3, 256, 16}, at::dtype(at::kFloat).device(device));
  const auto inputs = [=](int64_t tokens) {
    const auto first = [&](const Tensor& t) { return t.narrow(0, 0, tokens); };
    return SelectiveScanInputs{first(x), first(h).narrow(1, 0, 256), A_log, first(B), first(B), weight, first(x), weight};
  };
  return [=] {
    Tensor updated = state;  // the same memory
    const auto [y, last] = selective_scan(inputs(300), cu);
    return std::vector<Tensor>{y, last, selective_scan_prefill(inputs(300), cu, updated, slots),
                               selective_scan_step(inputs(3), updated, slots), state.clone()};
  };
}

const DefineSchemaCases kSchemaCases("selective_scan", schema_cases);
const DefineCalls kCalls("selective_scan", calls);

}  // namespace selective_scan_test
}  // namespace based::ops
