#include "based/ops/delta_rule/gated_delta_rule.h"

#include "based/ops/delta_rule/gated_delta_rule_bonus.h"
#include "based/ops/pointwise/rowwise.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace gated_delta_rule_test {

using namespace testing;
using std::vector;

enum class Decay { none, per_head, per_channel };

struct RuleCase {
  vector<int64_t> lengths;
  Decay decay = Decay::none;
  bool delta = false, beta = false, bonus = false, initial = true;
  double mean_decay = -0.1;  // mean of the log decays
  int64_t key_heads = 2, heads = 2, key_dim = 6, value_dim = 10;
};

// q, k, v and, where there are such, log_decay, beta, bonus, initial_state; values that bf16 holds too. Keys have length 1, as in DeltaNet.
vector<Tensor> make_inputs(const RuleCase& c) {
  torch::manual_seed(17);
  const int64_t tokens = offsets(c.lengths)[-1].item<int64_t>(), rows = static_cast<int64_t>(c.lengths.size());
  const Tensor k = random({tokens, c.key_heads, c.key_dim});
  vector<Tensor> all{random({tokens, c.key_heads, c.key_dim}), k / k.norm(2, -1, true), random({tokens, c.heads, c.value_dim})};
  if (c.decay == Decay::per_head) all.push_back(c.mean_decay * at::rand({tokens, c.heads}, at::kDouble) * 2);
  if (c.decay == Decay::per_channel) all.push_back(c.mean_decay * at::rand({tokens, c.heads, c.key_dim}, at::kDouble) * 2);
  if (c.beta) all.push_back(at::rand({tokens, c.heads}, at::kDouble) * 2);
  if (c.bonus) all.push_back(random({c.heads, c.key_dim}));
  if (c.initial) all.push_back(random({rows, c.heads, c.key_dim, c.value_dim}));
  for (Tensor& x : all) x = x.to(at::kBFloat16).to(at::kDouble);
  return all;
}

vector<Tensor> as_type(const RuleCase& c, const vector<Tensor>& inputs, at::ScalarType type) {
  vector<Tensor> result;
  for (const Tensor& x : inputs) result.push_back(x.to(type));
  if (c.initial && type == at::kBFloat16) result.back() = result.back().to(at::kFloat);
  return result;
}

GatedDeltaRuleInputs named(const RuleCase& c, const vector<Tensor>& t) {
  GatedDeltaRuleInputs in{t[0], t[1], t[2], {}, {}, {}, c.delta, 0.5};
  size_t next = 3;
  if (c.decay != Decay::none) in.log_decay = t[next++];
  if (c.beta) in.beta = t[next++];
  if (c.bonus) in.bonus = t[next++];
  return in;
}

Function calling(const RuleCase& c, decltype(&gated_delta_rule) op = gated_delta_rule) {
  return [=](const vector<Tensor>& t) {
    const auto [y, state] = op(named(c, t), offsets(c.lengths).to(t[0].device()), c.initial ? OptionalTensor(t.back()) : std::nullopt);
    return vector<Tensor>{y, state};
  };
}

const vector<int64_t> kOdd{0, 1, 0, 63, 64, 65, 2, 2, 17, 130, 0};
const vector<RuleCase> kCases = {
    {{}},
    {{0}},
    {kOdd},
    {kOdd, Decay::per_head},
    {kOdd, Decay::per_channel},
    {kOdd, Decay::none, true, true},
    {kOdd, Decay::per_head, true, true, false, false},
    {kOdd, Decay::per_channel, true, true},
    {kOdd, Decay::per_channel, true},
    {kOdd, Decay::none, false, true, false, false},
    {kOdd, Decay::per_channel, false, false, true},
    {kOdd, Decay::per_head, false, false, true, false},
    {{1, 0, 1}, Decay::none, false, false, true},
    {kOdd, Decay::per_head, true, true, false, true, -20},
    {kOdd, Decay::per_channel, true, true, false, true, -20},
    {kOdd, Decay::per_channel, false, false, true, true, -20},
    {{200, 75}, Decay::per_channel, false, false, false, true, -300},
    {{200, 75}, Decay::per_head, false, true, false, true, -0.5, 1, 6, 16, 8},
    {{80, 75}, Decay::per_channel, true, true, false, true, -0.5, 2, 4, 33, 1},
    {{40, 9}, Decay::per_channel, true, true, false, true, -0.5, 1, 1, 1, 1},
    // Sizes that a GPU's chunks have.
    {{100, 0, 65, 1}, Decay::per_channel, false, false, false, true, -0.2, 1, 2, 64, 64},
    {{100, 0, 65, 1}, Decay::per_head, true, true, false, true, -0.1, 2, 2, 64, 64},
    {{0, 100, 0, 65, 1, 0}, Decay::per_channel, false, false, true, true, -0.2, 1, 2, 64, 64},
    {{70}, Decay::per_head, false, true, false, false, -0.1, 1, 2, 64, 64},
};

class GatedDeltaRules : public ::testing::TestWithParam<std::tuple<RuleCase, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<1>(GetParam())); }
  RuleCase one() const { return std::get<0>(GetParam()); }
  at::DeviceType device() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Cases, GatedDeltaRules, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kDevices)),
                         case_and_device<RuleCase>);

TEST_P(GatedDeltaRules, ByChunksEqualTheDoubleReferenceByTokens) {
  const NanFilledMemory nan_filled;
  const RuleCase c = one();
  const vector<Tensor> exact = make_inputs(c);
  const Function op = on_device(calling(c), device());
  const auto expected = calling(c, gated_delta_rule_reference)(exact);
  const vector<Tensor> cotangents = random_like(expected);
  const auto expected_gradients = gradients(calling(c, gated_delta_rule_reference), exact, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-11}, std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 3e-2}}) {
    const vector<Tensor> inputs = as_type(c, exact, type);
    const auto actual = op(inputs);
    vector<Tensor> typed;
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].scalar_type(), i == 0 || type != at::kBFloat16 ? type : at::kFloat);
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << type << ", output " << i;
      typed.push_back(cotangents[i].to(actual[i].scalar_type()));
    }
    const auto found = gradients(op, inputs, typed);
    for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(close(found[i], expected_gradients[i], tolerance)) << type << ", gradient " << i;
  }
}

// Rows in pieces of any length, with slots in shuffled order, and then token by token.
TEST_P(GatedDeltaRules, PrefillsAndStepsGoOnFromSlots) {
  RuleCase whole = one();
  whole.lengths = {75, 75};
  const at::NoGradGuard no_grad;
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-11}, std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 3e-2}}) {
    vector<Tensor> inputs = make_inputs(whole);
    const auto expected = calling(whole, gated_delta_rule_reference)(inputs);
    inputs = as_type(whole, inputs, type);
    for (Tensor& x : inputs) x = x.to(device());
    const auto state_type = type == at::kBFloat16 ? at::kFloat : type;
    const auto options = at::dtype(state_type).device(device());
    Tensor state = at::full({4, whole.heads, whole.key_dim, whole.value_dim}, 7.0, options);
    const Tensor slots = torch::tensor({2, 0}, at::kLong).to(device());
    state.index_copy_(0, slots, whole.initial ? inputs.back() : at::zeros({2, whole.heads, whole.key_dim, whole.value_dim}, options));
    const auto part = [&](int64_t begin, int64_t end) {
      vector<Tensor> cut = inputs;
      for (size_t i = 0; i < cut.size(); ++i) {
        if (cut[i].size(0) == 150) cut[i] = cut[i].unflatten(0, {2, 75}).slice(1, begin, end).flatten(0, 1);
      }
      return named(whole, cut);
    };
    vector<Tensor> ys;
    for (const auto& [begin, end] : {std::pair{0, 1}, std::pair{1, 70}}) {
      ys.push_back(gated_delta_rule_prefill(part(begin, end), offsets({end - begin, end - begin}).to(device()), state, slots)
                       .unflatten(0, {2, end - begin}));
    }
    for (int64_t t = 70; t < 75; ++t) ys.push_back(gated_delta_rule_step(part(t, t + 1), state, slots).unsqueeze(1));
    EXPECT_TRUE(close(at::cat(ys, 1).flatten(0, 1), expected[0], tolerance)) << type;
    EXPECT_TRUE(close(state.index_select(0, slots), expected[1], tolerance)) << type;
    EXPECT_TRUE((state[1] == 7).all().item<bool>() && (state[3] == 7).all().item<bool>());
  }
}

TEST_P(GatedDeltaRules, StepsDependOnNoOtherRow) {
  RuleCase c = one();
  c.lengths = vector<int64_t>(17, 1);
  const at::NoGradGuard no_grad;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    vector<Tensor> inputs = as_type(c, make_inputs(c), type);
    for (Tensor& x : inputs) x = x.to(device());
    const Tensor first = random({17, c.heads, c.key_dim, c.value_dim}, at::kFloat).to(device());
    Tensor together = first.clone();
    const Tensor slots = at::arange(17, at::dtype(at::kLong).device(device())).flip(0);
    const Tensor y = gated_delta_rule_step(named(c, inputs), together, slots);
    for (int64_t row = 0; row < 17; ++row) {
      vector<Tensor> alone = inputs;
      for (Tensor& x : alone)
        if (x.size(0) == 17) x = x.narrow(0, row, 1).clone();
      Tensor state = first.narrow(0, 16 - row, 1).clone();
      EXPECT_TRUE(same_bits(gated_delta_rule_step(named(c, alone), state, at::zeros({1}, slots.options()))[0], y[row]));
      EXPECT_TRUE(same_bits(state[0], together[16 - row]));
    }
  }
}

TEST(GatedDeltaRule, ReferenceFollowsTheFormula) {
  const auto number = [](double x) { return at::full({1, 1, 1}, x, at::kDouble); };
  const auto flat = [](double x) { return at::full({1, 1}, x, at::kDouble); };
  const Tensor cu = offsets({1}), before = at::full({1, 1, 1, 1}, 5.0, at::kDouble);
  const double kept = 5 * std::exp(-0.3);
  const auto expect = [&](const GatedDeltaRuleInputs& in, double y, double state) {
    const auto [found_y, found_state] = gated_delta_rule_reference(in, cu, before);
    EXPECT_NEAR(found_y.item<double>(), y, 1e-14);
    EXPECT_NEAR(found_state.item<double>(), state, 1e-14);
  };
  const double plain = kept + 3 * 0.5 * 7, corrected = kept + 3 * 0.5 * (7 - kept * 3), added = kept + 3 * 7;
  expect({number(2), number(3), number(7), flat(-0.3), flat(0.5), {}, false, 0.1}, 0.1 * 2 * plain, plain);
  expect({number(2), number(3), number(7), number(-0.3), flat(0.5), {}, true, 0.1}, 0.1 * 2 * corrected, corrected);
  expect({number(2), number(3), number(7), number(-0.3), {}, flat(11), false, 0.1}, 0.1 * (2 * 5 + 2 * 11 * 3 * 7), added);
}

TEST(GatedDeltaRule, Gradcheck) {
  for (const RuleCase& c : {RuleCase{{3, 0, 5}, Decay::per_head, true, true, false, true, -0.3, 1, 2, 3, 2},
                            RuleCase{{4, 2}, Decay::per_channel, true, false, false, true, -0.3, 2, 2, 3, 2},
                            RuleCase{{19}, Decay::per_channel, false, false, true, true, -0.3, 1, 1, 2, 2}})
    EXPECT_TRUE(gradcheck(calling(c), make_inputs(c)));
}

// The gradient with a bonus by that of the rule without one, as on a GPU.
TEST(GatedDeltaRule, GradientWithABonusFollowsFromTheOneWithout) {
  for (const RuleCase& c : {RuleCase{kOdd, Decay::per_channel, false, false, true}, RuleCase{{1, 0, 1}, Decay::none, false, false, true},
                            RuleCase{{0, 5, 0, 7, 0}, Decay::per_head, false, false, true, true, -0.3, 2, 6, 3, 4},
                            RuleCase{{9}, Decay::per_channel, false, false, true, false}}) {
    const vector<Tensor> inputs = make_inputs(c);
    const auto reference = calling(c, gated_delta_rule_reference);
    const vector<Tensor> cotangents = random_like(reference(inputs)), expected = gradients(reference, inputs, cotangents);
    const Tensor cu = offsets(c.lengths);
    const OptionalTensor grad_state = cotangents[1], initial = c.initial ? OptionalTensor(inputs.back()) : std::nullopt;
    const auto without = [](const GatedDeltaRuleBackward& in) {
      EXPECT_FALSE(in.forward.inputs.bonus);
      return call(in);
    };
    const auto found = gated_delta_rule_gradient_with_bonus({cotangents[0], grad_state, {named(c, inputs), cu, initial}}, without);
    const auto& [q, k, v, log_decay, beta, bonus, state] = found;
    vector<Tensor> all{q, k, v};
    if (c.decay != Decay::none) all.push_back(log_decay);
    all.push_back(bonus);
    if (c.initial) all.push_back(state);
    ASSERT_EQ(all.size(), expected.size());
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(close(all[i], expected[i], 1e-11)) << "gradient " << i;
  }
}

// If gradients are enabled, the initial state is not modified.
TEST(GatedDeltaRule, GradientsFlowThroughAStateInSlots) {
  const RuleCase c{{5, 6}, Decay::per_head, true, true};
  const vector<Tensor> inputs = make_inputs(c);
  const Tensor slots = torch::tensor({2, 0}, at::kLong);
  Tensor state = at::zeros({3, c.heads, c.key_dim, c.value_dim}, at::kDouble).index_copy(0, slots, inputs.back()).requires_grad_();
  const Tensor given = state;
  const auto [wanted, last] = gated_delta_rule(named(c, inputs), offsets(c.lengths), inputs.back());
  EXPECT_TRUE(same_bits(gated_delta_rule_prefill(named(c, inputs), offsets(c.lengths), state, slots), wanted));
  EXPECT_TRUE(same_bits(state.index_select(0, slots), last));
  EXPECT_TRUE(same_bits(given.index_select(0, slots), inputs.back()));
  EXPECT_TRUE(state.requires_grad());
}

TEST(GatedDeltaRule, ErrorsNameOperatorArgumentAndValue) {
  const Tensor q = random({5, 2, 3}), v = random({5, 4, 6}), cu = offsets({3, 2});
  Tensor state = random({3, 4, 3, 6});
  const auto message = [&](const GatedDeltaRuleInputs& in) { return error_of([&] { gated_delta_rule(in, cu); }); };
  EXPECT_EQ(message({q, q, v}), "");
  EXPECT_EQ(message({q.to(at::kLong), q, v}), "gated_delta_rule: q must be floating, got Long");
  EXPECT_EQ(message({q, q.narrow(2, 0, 2), v}), "gated_delta_rule: k must have shape [5, 2, 3], got [5, 2, 2]");
  EXPECT_EQ(message({q, q, v.narrow(1, 0, 3)}), "gated_delta_rule: heads must be a multiple of key_heads 2, got 3");
  EXPECT_EQ(message({q, q, v, random({5, 2})}), "gated_delta_rule: log_decay must have shape [5, 4], got [5, 2]");
  EXPECT_EQ(message({q, q, v, random({5, 4, 2})}), "gated_delta_rule: log_decay must have shape [5, 4, 3], got [5, 4, 2]");
  EXPECT_EQ(message({q, q, v, {}, random({5, 4}, at::kFloat)}), "gated_delta_rule: beta must be Double or Double, got Float");
  EXPECT_EQ(message({q, q, v, {}, random({5, 4}), random({4, 3})}), "gated_delta_rule: a bonus goes without beta and delta");
  EXPECT_EQ(error_of([&] {
              gated_delta_rule({q, q, v}, offsets({3, 1}));
            }),
            "gated_delta_rule: cu_seqlens must end at the number of tokens, 5, got 4");
  EXPECT_EQ(error_of([&] {
              gated_delta_rule({q, q, v}, cu, state);
            }),
            "gated_delta_rule: initial_state must have shape [2, 4, 3, 6], got [3, 4, 3, 6]");
  const at::NoGradGuard no_grad;
  EXPECT_EQ(error_of([&] {
              gated_delta_rule_step({q, q, v}, state, torch::tensor({0, 1, 2, 3, 4}, at::kLong));
            }),
            "gated_delta_rule_step: slots must be 0..2, got 3");
  EXPECT_EQ(error_of([&] {
              gated_delta_rule_prefill({q, q, v}, cu, state, torch::tensor({1, 1}, at::kLong));
            }),
            "gated_delta_rule_prefill: slots must differ, got 1 twice");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none, cu = two_rows(), slots = five_slots();
  const Tensor q = f({5, 1, 3}), v = f({5, 2, 4}), state = f({5, 2, 3, 4});
  const Tensor two_slots = torch::tensor({3, 0}, at::kLong);
  return {
      {"gated_delta_rule", {q, q, v, f({5, 2}), f({5, 2}), none, true, 1.0, cu, f({2, 2, 3, 4})}},
      {"gated_delta_rule", {q, q, v, f({5, 2, 3}), none, f({2, 3}), false, 1.0, cu, none}},
      {"gated_delta_rule_backward", {v, none, q, q, v, f({5, 2}), f({5, 2}), none, true, 1.0, cu, f({2, 2, 3, 4})}},
      {"gated_delta_rule_backward", {v, f({2, 2, 3, 4}), q, q, v, f({5, 2, 3}), none, f({2, 3}), false, 1.0, cu, none}},
      {"gated_delta_rule_prefill", {q, q, v, f({5, 2}), f({5, 2}), none, true, 1.0, cu, state, two_slots}},
      {"gated_delta_rule_prefill", {q, q, v, none, none, none, false, 1.0, cu, state, two_slots}},
      {"gated_delta_rule_step", {q, q, v, f({5, 2}), f({5, 2}), none, true, 1.0, state, slots}},
      {"gated_delta_rule_step", {q, q, v, f({5, 2, 3}), none, f({2, 3}), false, 1.0, state, slots}},
  };
}

Calls calls(at::Device device) {
  const Tensor keys = random({300, 4, 64}, at::kBFloat16).to(device), values = random({300, 4, 64}, at::kBFloat16).to(device);
  const Tensor cu = offsets({100, 1, 199}).to(device), slots = torch::tensor({2, 0, 1}, at::kLong).to(device);
  const Tensor state = at::zeros({3, 4, 64, 64}, at::dtype(at::kFloat).device(device));
  // On the first tokens: with a decay for each channel, or with the delta rule.
  const auto rule = [=](int64_t tokens, bool delta) {
    const Tensor some = keys.narrow(0, 0, tokens);
    GatedDeltaRuleInputs in{some, rowwise::l2_norm(some, 1e-6), values.narrow(0, 0, tokens)};
    in.delta = delta;
    if (!delta) in.log_decay = -some.abs();
    return in;
  };
  return [=] {
    Tensor updated = state;  // the same memory
    return std::vector<Tensor>{std::get<0>(gated_delta_rule(rule(300, false), cu)), std::get<1>(gated_delta_rule(rule(300, true), cu)),
                               gated_delta_rule_prefill(rule(300, true), cu, updated, slots),
                               gated_delta_rule_step(rule(3, false), updated, slots), state.clone()};
  };
}

const DefineSchemaCases kSchemaCases("gated_delta_rule", schema_cases);
const DefineCalls kCalls("gated_delta_rule", calls);

}  // namespace gated_delta_rule_test
}  // namespace based::ops
