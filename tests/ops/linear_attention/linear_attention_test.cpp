#include "based/ops/linear_attention/linear_attention.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace linear_attention_test {

using namespace testing;
using std::vector;

constexpr double kEps = 1e-3;  // large enough to be seen

struct Case {
  vector<int64_t> lengths;
  int64_t heads = 2, features = 4, head_dim = 5;
  bool initial = false;
};

const vector<Case> kCases = {
    {{}},
    {{0}},
    {{1}},
    {{5, 5, 5}},
    {{127}},
    {{128}},
    {{129}},
    {{0, 1, 0, 70, 2, 2, 0}, 2, 4, 5, true},
    {{33, 0, 130}, 3, 16, 64, true},
    {{300, 300}, 1, 1, 1, true},
    {{257}, 2, 73, 8},
    {{70, 0, 1, 200, 64}, 2, 64, 48},
};

// q, k, v and the initial sums; features are positive, so that denominators are far from 0.
vector<Tensor> make_inputs(const Case& c) {
  torch::manual_seed(11);
  const int64_t tokens = offsets(c.lengths)[-1].item<int64_t>(), rows = static_cast<int64_t>(c.lengths.size());
  const auto representable = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  vector<Tensor> inputs{representable(random({tokens, c.heads, c.features}).abs()),
                        representable(random({tokens, c.heads, c.features}).abs()), representable(random({tokens, c.heads, c.head_dim}))};
  if (!c.initial) return inputs;
  const Tensor features = random({rows, c.heads, 3, c.features}).abs();
  inputs.push_back(at::matmul(features.transpose(-1, -2), random({rows, c.heads, 3, c.head_dim})).to(at::kFloat).to(at::kDouble));
  inputs.push_back(features.sum(2).to(at::kFloat).to(at::kDouble));
  return inputs;
}

// The state in the type of its sums.
vector<Tensor> as_type(const vector<Tensor>& tensors, at::ScalarType type) {
  vector<Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) result.push_back(tensors[i].to(i >= 3 && type == at::kBFloat16 ? at::kFloat : type));
  return result;
}

template <class Operator>
Function calling(Operator op, const Case& c) {
  return [op, cu_seqlens = offsets(c.lengths)](const vector<Tensor>& t) {
    std::optional<LinearAttentionState> initial;
    if (t.size() > 3) initial = LinearAttentionState{t[3], t[4]};
    const auto [y, state] = op(t[0], t[1], t[2], cu_seqlens.to(t[0].device()), initial, kEps);
    return vector<Tensor>{y, state.kv, state.k};
  };
}

class LinearAttentionCases : public ::testing::TestWithParam<std::tuple<Case, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(device()); }
  const Case& test_case() const { return std::get<0>(GetParam()); }
  at::DeviceType device() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Lengths, LinearAttentionCases, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kDevices)),
                         case_and_device<Case>);

// Every weight by itself, as the formula has it.
TEST_P(LinearAttentionCases, ReferenceIsTheFormula) {
  if (test_case().initial) return;
  const vector<Tensor> in = make_inputs(test_case());
  const Tensor y = calling(linear_attention_reference, test_case())(in)[0];
  int64_t begin = 0;
  for (const int64_t length : test_case().lengths) {
    const auto heads_first = [&](const Tensor& x) { return x.narrow(0, begin, length).transpose(0, 1); };
    const Tensor weights = at::matmul(heads_first(in[0]), heads_first(in[1]).transpose(1, 2)).tril();
    const Tensor expected = at::matmul(weights, heads_first(in[2])) / (weights.sum(-1, true) + kEps);
    EXPECT_TRUE(close(heads_first(y), expected, 1e-12));
    begin += length;
  }
}

// Outputs and gradients in every type.
void expect_equal(const Function& reference, const Function& tested, const vector<Tensor>& in) {
  const vector<Tensor> expected = reference(in), cotangents = random_like(expected), gradient = gradients(reference, in, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-11}, std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const vector<Tensor> given = as_type(in, type), found = tested(given);
    vector<Tensor> seen;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(close(found[i], expected[i], tolerance)) << "output " << i << " in " << type;
      seen.push_back(cotangents[i].to(found[i].scalar_type()));
    }
    const vector<Tensor> wanted = gradients(reference, in, as_type(as_type(cotangents, type), at::kDouble)),
                         got = gradients(tested, given, seen);
    for (size_t i = 0; i < in.size(); ++i) EXPECT_TRUE(close(got[i], wanted[i], tolerance)) << "gradient " << i << " in " << type;
  }
}

TEST_P(LinearAttentionCases, EqualsTheReferenceInDouble) {
  expect_equal(calling(linear_attention_reference, test_case()), on_device(calling(linear_attention, test_case()), device()),
               make_inputs(test_case()));
}

// y of rows without a state.
template <class Operator>
Function calling_for_y(Operator op, const Case& c) {
  return [op, cu_seqlens = offsets(c.lengths)](const vector<Tensor>& t) {
    return vector<Tensor>{op(t[0], t[1], t[2], cu_seqlens.to(t[0].device()), kEps)};
  };
}
Tensor y_of_reference(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, double eps) {
  return std::get<0>(linear_attention_reference(q, k, v, cu_seqlens, {}, eps));
}

TEST_P(LinearAttentionCases, WithoutStatesEqualsTheReferenceInDouble) {
  if (test_case().initial) return;
  for (const auto op : {linear_attention_pairs, linear_attention_without_state})
    expect_equal(calling_for_y(y_of_reference, test_case()), on_device(calling_for_y(op, test_case()), device()), make_inputs(test_case()));
}

// Queries, keys and values that are columns of one tensor.
TEST_P(LinearAttentionCases, TakesColumns) {
  const Case& c = test_case();
  if (c.initial || c.lengths.empty()) return;
  const vector<Tensor> in = as_type(make_inputs(c), at::kFloat);
  const Tensor side_by_side = at::cat({in[0], in[1], in[2]}, 2).to(device()), cu_seqlens = offsets(c.lengths).to(device());
  const auto parts = side_by_side.split_with_sizes({c.features, c.features, c.head_dim}, 2);
  EXPECT_TRUE(same_bits(linear_attention_pairs(parts[0], parts[1], parts[2], cu_seqlens, kEps),
                        linear_attention_pairs(parts[0].contiguous(), parts[1].contiguous(), parts[2].contiguous(), cu_seqlens, kEps)));
}

TEST(LinearAttention, GradientsAreThoseOfFiniteDifferences) {
  for (const Case& c : {Case{{3, 0, 2}, 2, 3, 2, true}, Case{{130}, 1, 1, 1, false}})
    EXPECT_TRUE(gradcheck(calling(linear_attention, c), make_inputs(c)));
  const Case without_state{{3, 0, 2}, 2, 3, 2};
  for (const auto op : {linear_attention_pairs, linear_attention_without_state})
    EXPECT_TRUE(gradcheck(calling_for_y(op, without_state), make_inputs(without_state)));
}

// The weights that the gradient keeps are functions of queries and keys: a gradient's own gradient goes through them.
TEST(LinearAttention, GradientsHaveGradients) {
  const Case c{{3, 5}, 2, 3, 2};
  const Function y = calling_for_y(linear_attention_without_state, c);
  const auto gradient_outputs = [&](vector<Tensor> in) {
    const at::AutoGradMode on(true);
    for (Tensor& each : in)
      if (!each.requires_grad()) each = each.detach().requires_grad_();
    return torch::autograd::grad({y(in)[0].square().sum()}, in, {}, /*retain_graph=*/true, /*create_graph=*/true);
  };
  EXPECT_TRUE(gradcheck(gradient_outputs, make_inputs(c), 1e-5));
}

BASED_ON_EVERY_DEVICE(LinearAttentionStates);

// Prefill in two pieces and steps go on from where the whole leaves off, in the slots they are told, and leave other slots alone.
TEST_P(LinearAttentionStates, PrefillAndStepsContinue) {
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 2e-2}}) {
    const Case c{{40, 40}, 2, 7, 5, false};
    const vector<Tensor> in = as_type(make_inputs(c), type);
    const auto [whole, last] = linear_attention_reference(in[0], in[1], in[2], offsets(c.lengths), {}, kEps);
    const at::TensorOptions sums = at::dtype(type == at::kDouble ? at::kDouble : at::kFloat).device(GetParam());
    Tensor kv = at::zeros({4, 2, 7, 5}, sums), k = at::zeros({4, 2, 7}, sums);
    kv[1].fill_(3), k[1].fill_(3);
    const Tensor slots = torch::tensor({2, 0}, at::kLong).to(GetParam());
    const auto piece = [&](const Tensor& x, int64_t begin, int64_t size) {
      return at::cat({x.narrow(0, begin, size), x.narrow(0, 40 + begin, size)}).to(GetParam());
    };
    const at::NoGradGuard no_grad;
    const auto expect = [&](const Tensor& y, int64_t begin, int64_t size) {
      EXPECT_TRUE(close(y, piece(whole, begin, size), tolerance)) << type << " from " << begin;
    };
    const auto part = [&](int64_t begin, int64_t size) {
      return vector{piece(in[0], begin, size), piece(in[1], begin, size), piece(in[2], begin, size)};
    };
    const vector<Tensor> first = part(0, 30);
    expect(linear_attention_prefill(first[0], first[1], first[2], offsets({30, 30}).to(GetParam()), kv, k, slots, kEps), 0, 30);
    for (int64_t t = 30; t < 40; ++t) {
      const vector<Tensor> one = part(t, 1);
      expect(linear_attention_step(one[0], one[1], one[2], kv, k, slots, kEps), t, 1);
    }
    EXPECT_TRUE(close(kv.index_select(0, slots), last.kv, tolerance));
    EXPECT_TRUE(close(k.index_select(0, slots), last.k, tolerance));
    EXPECT_TRUE(same_bits(kv[1], at::full_like(kv[1], 3)));
    EXPECT_EQ(kv[3].abs().sum().item<double>() + k[3].abs().sum().item<double>(), 0);
  }
}

TEST_P(LinearAttentionStates, ARowOfAStepDependsOnNoOther) {
  const int64_t rows = 65;
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    torch::manual_seed(3);
    const Tensor q = random({rows, 3, 33}, type).abs().to(GetParam()), k = random({rows, 3, 33}, type).abs().to(GetParam()),
                 v = random({rows, 3, 19}, type).to(GetParam()), kv = random({rows, 3, 33, 19}, at::kFloat).to(GetParam()),
                 sum_k = random({rows, 3, 33}, at::kFloat).abs().to(GetParam()), slots = torch::arange(rows).flip(0).to(GetParam());
    Tensor all_kv = kv.clone(), all_k = sum_k.clone();
    const Tensor together = linear_attention_step(q, k, v, all_kv, all_k, slots, kEps);
    for (const int64_t row : {int64_t{0}, int64_t{31}, rows - 1}) {
      Tensor own_kv = kv.clone(), own_k = sum_k.clone();
      const auto one = [row](const Tensor& x) { return x.narrow(0, row, 1); };
      EXPECT_TRUE(same_bits(linear_attention_step(one(q), one(k), one(v), own_kv, own_k, one(slots), kEps)[0], together[row]));
      EXPECT_TRUE(same_bits(own_kv[rows - 1 - row], all_kv[rows - 1 - row]));
    }
  }
}

TEST(LinearAttention, PrefillReplacesTheStateWhereGradientsAreOn) {
  const Tensor q = small_random({5, 2, 4}).abs().requires_grad_(), k = small_random({5, 2, 4}).abs(), v = small_random({5, 2, 6});
  Tensor kv = at::zeros({3, 2, 4, 6}), sums = at::zeros({3, 2, 4});
  const Tensor before = kv;
  linear_attention_prefill(q, k, v, two_rows(), kv, sums, torch::tensor({2, 0}, at::kLong), kEps);
  EXPECT_FALSE(kv.is_same(before));
  EXPECT_EQ(before.abs().sum().item<double>(), 0);
  EXPECT_GT(kv.abs().sum().item<double>(), 0);
}

TEST(LinearAttention, RefusesWrongArguments) {
  const Tensor q = at::zeros({4, 2, 16}), v = at::zeros({4, 2, 8}), cu = offsets({4});
  const auto message = [](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& starts, double eps = 0) {
    return error_of([&] { linear_attention(a, b, c, starts, {}, eps); });
  };
  EXPECT_EQ(message(q.view({4, 32}), q, v, cu), "linear_attention: q must have shape [any, any, any], got [4, 32]");
  EXPECT_EQ(message(at::zeros({4, 2, 0}), q, v, cu), "linear_attention: features must be at least 1, got 0");
  EXPECT_EQ(message(q, at::zeros({4, 2, 8}), v, cu), "linear_attention: k must have shape [4, 2, 16], got [4, 2, 8]");
  EXPECT_EQ(message(q, q, at::zeros({5, 2, 8}), cu), "linear_attention: v must have shape [4, 2, any], got [5, 2, 8]");
  EXPECT_EQ(message(q, q, v.to(at::kDouble), cu), "linear_attention: v must be Float, got Double");
  EXPECT_EQ(message(q, q, v, cu.to(at::kInt)), "linear_attention: cu_seqlens must be Long, got Int");
  EXPECT_EQ(message(q, q, v, offsets({5})), "linear_attention: cu_seqlens must end at the number of tokens, 4, got 5");
  EXPECT_EQ(message(q, q, v, cu, -1), "linear_attention: eps must be a number of at least 0, got -1");
  EXPECT_EQ(error_of([&] {
              linear_attention(q, q, v, cu, LinearAttentionState{at::zeros({1, 2, 16, 9}), at::zeros({1, 2, 16})}, 0);
            }),
            "linear_attention: kv_state must have shape [1, 2, 16, 8], got [1, 2, 16, 9]");
  Tensor kv = at::zeros({3, 2, 16, 8}), k = at::zeros({3, 2, 16});
  const auto step = [&](const vector<int64_t>& slots) {
    const auto rows = [&](const Tensor& x) { return x.narrow(0, 0, static_cast<int64_t>(slots.size())); };
    return error_of([&] { linear_attention_step(rows(q), rows(q), rows(v), kv, k, torch::tensor(slots, at::kLong), 0); });
  };
  EXPECT_EQ(step({1, 3}), "linear_attention_step: slots must be 0..2, got 3");
  EXPECT_EQ(step({1, 1}), "linear_attention_step: slots must differ, got 1 twice");
  const Tensor differentiated = at::zeros({1, 2, 16}).requires_grad_();
  EXPECT_EQ(error_of([&] { linear_attention_step(differentiated, q.narrow(0, 0, 1), v.narrow(0, 0, 1), kv, k, offsets({}), 0); }),
            "linear_attention_step: works in place and has no gradient; turn gradients off around it");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none, cu = two_rows();
  const Tensor q = f({5, 2, 4}), k = f({5, 2, 4}), v = f({5, 2, 6}), kv = f({2, 2, 4, 6}), sums = f({2, 2, 4}) + 20;
  return {
      {"linear_attention", {q, k, v, cu, kv, sums, 1e-6, true}},
      {"linear_attention", {q, k, v, cu, none, none, 1e-6, true}},
      {"linear_attention", {q, k, v, cu, none, none, 0.0, false}},
      {"linear_attention_pairs", {q, k, v, cu, 1e-6}},
      {"linear_attention_pairs_forward", {q, k, v, cu, 1e-6}},
      {"linear_attention_pairs_backward", {f({5, 2, 6}), q, k, v, cu, 1e-6, f({5, 2, 6}), f({5, 2}) + 20}},
      {"linear_attention_prefill", {q, k, v, cu, f({5, 2, 4, 6}), f({5, 2, 4}) + 20, torch::tensor({3, 0}, at::kLong), 1e-6}},
      {"linear_attention_step", {q, k, v, f({5, 2, 4, 6}), f({5, 2, 4}) + 20, five_slots(), 1e-6}},
  };
}

const DefineSchemaCases kSchemaCases("linear_attention", schema_cases);

}  // namespace linear_attention_test
}  // namespace based::ops
