#include "based/ops/taylor/taylor_attention.h"

#include "based/kernels/taylor/taylor.h"
#include "based/ops/linear/split_columns.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace taylor_attention_test {

using namespace testing;
using std::vector;

struct Case {
  vector<int64_t> lengths;
  int64_t heads = 2, feature_dim = 4, head_dim = 5;
  bool initial = false, decay = false, decay_denominator = true;
};

struct Inputs {
  vector<Tensor> tensors;  // q, k, v and, where there is an initial state, its kv and k
  Tensor cu_seqlens;
  TaylorDecay decay;

  // On a device.
  TaylorDecay decay_on(at::Device device) const {
    return {decay.rates ? OptionalTensor(decay.rates->to(device)) : std::nullopt, decay.denominator};
  }
};

Inputs make_inputs(const Case& c) {
  torch::manual_seed(7);
  const Tensor cu_seqlens = offsets(c.lengths);
  const int64_t tokens = cu_seqlens[-1].item<int64_t>(), rows = static_cast<int64_t>(c.lengths.size());
  const double scale = std::pow(static_cast<double>(c.feature_dim), -0.25);
  const auto representable = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  Inputs in{
      {representable(random({tokens, c.heads, c.feature_dim}, at::kDouble, scale)),
       representable(random({tokens, c.heads, c.feature_dim}, at::kDouble, scale)), representable(random({tokens, c.heads, c.head_dim}))},
      cu_seqlens,
      {}};
  if (c.initial) {  // the state after a few tokens, so that its denominators are those of a real one
    const Tensor features = taylor_features(random({rows, c.heads, 3, c.feature_dim}, at::kDouble, scale));
    in.tensors.push_back(at::matmul(features.transpose(-1, -2), random({rows, c.heads, 3, c.head_dim})).to(at::kFloat).to(at::kDouble));
    in.tensors.push_back(features.sum(2).to(at::kFloat).to(at::kDouble));
  }
  if (c.decay) in.decay = {torch::linspace(0.9, 1.0, c.heads, at::kFloat).to(at::kDouble), c.decay_denominator};
  return in;
}

// q, k, v in `type`, the state in the type of its sums.
vector<Tensor> as_type(const vector<Tensor>& tensors, at::ScalarType type) {
  vector<Tensor> result;
  for (size_t i = 0; i < tensors.size(); ++i) result.push_back(tensors[i].to(i >= 3 && type == at::kBFloat16 ? at::kFloat : type));
  return result;
}

template <class Operator>
Function calling(Operator op, const Inputs& in) {
  return [op, in](const vector<Tensor>& t) {
    std::optional<TaylorState> initial;
    if (t.size() > 3) initial = TaylorState{t[3], t[4]};
    const auto device = t[0].device();
    const auto [y, state] = op(t[0], t[1], t[2], in.cu_seqlens.to(device), initial, in.decay_on(device));
    return vector<Tensor>{y, state.kv, state.k};
  };
}

const vector<Case> kCases = {
    {{}},
    {{0}},
    {{1}},
    {{2}},
    {{5, 5, 5}},
    {{63}},
    {{64}},
    {{65}},
    {{0, 1, 0, 70, 2, 2, 0}},
    {{33, 0, 130}, 3, 16, 64, true, false},
    {{66, 1, 0, 66}, 2, 8, 7, true, true},
    {{40, 12}, 1, 1, 1, true, true},
    {{129}, 1, 64, 3, false, true},
    {{255, 256, 257}, 1, 16, 64, false, false},
    {{2048}, 1, 16, 64, true, false},
    {{65, 0, 200}, 2, 16, 112, true, false},
    {{100, 28}, 2, 24, 48, true, false},
    {{70}, 1, 32, 300, false, false},
    {{66, 1, 0, 66}, 2, 8, 7, true, true, false},
    {{129, 5}, 3, 16, 64, false, true, false},
    {{150, 0, 3}, 1, 32, 64, true, true},
    {{140}, 2, 24, 64, true, true, false},
    {{40}, 2, 16, 64, true, false, false},
};

class TaylorAttentionCases : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Lengths, TaylorAttentionCases, ::testing::ValuesIn(kCases));

TEST_P(TaylorAttentionCases, ChunkedDoubleEqualsTheListing) {
  const Inputs in = make_inputs(GetParam());
  const auto listing = calling(taylor_attention_reference, in)(in.tensors), chunked = calling(taylor_attention, in)(in.tensors);
  for (size_t i = 0; i < listing.size(); ++i) EXPECT_TRUE(close(chunked[i], listing[i], 1e-12)) << "output " << i;
}

TEST_P(TaylorAttentionCases, QuadraticFormEqualsTheListing) {
  const Inputs in = make_inputs(GetParam());
  if (GetParam().initial) return;  // it has no state
  const Tensor expected = calling(taylor_attention_reference, in)(in.tensors)[0];
  const Tensor y = taylor_attention_quadratic(in.tensors[0], in.tensors[1], in.tensors[2], in.cu_seqlens, in.decay);
  EXPECT_TRUE(close(y, expected, 1e-12));
}

class TaylorAttentionOnDevices : public ::testing::TestWithParam<std::tuple<Case, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(device()); }
  const Case& lengths() const { return std::get<0>(GetParam()); }
  at::DeviceType device() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Lengths, TaylorAttentionOnDevices, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kDevices)),
                         case_and_device<Case>);

TEST_P(TaylorAttentionOnDevices, KernelsEqualTheDoubleReference) {
  const NanFilledMemory nan_filled;
  const Inputs in = make_inputs(lengths());
  const Function op = on_device(calling(taylor_attention, in), device());
  const auto expected = calling(taylor_attention, in)(in.tensors);
  const vector<Tensor> cotangents = random_like(expected);
  const auto expected_gradients = gradients(calling(taylor_attention, in), in.tensors, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const vector<Tensor> inputs = as_type(in.tensors, type);
    const auto actual = op(inputs);
    vector<Tensor> typed_cotangents;
    for (size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << type << ", output " << i;
      typed_cotangents.push_back(cotangents[i].to(actual[i].scalar_type()));
    }
    const auto actual_gradients = gradients(op, inputs, typed_cotangents);
    for (size_t i = 0; i < inputs.size(); ++i)  // in a row of one token the gradients of q and k are differences of equal numbers
      EXPECT_TRUE(close(actual_gradients[i], expected_gradients[i], tolerance, /*floor=*/0.1)) << type << ", gradient " << i;
  }
}

TEST_P(TaylorAttentionOnDevices, WithoutStateEqualsTheDoubleReference) {
  const NanFilledMemory nan_filled;
  Inputs in = make_inputs(lengths());
  in.tensors.resize(3);
  const auto forward = [&](const vector<Tensor>& t) {
    const auto there = [&](const Tensor& x) { return x.to(t[0].device()); };
    return vector<Tensor>{taylor_attention_without_state(t[0], t[1], t[2], there(in.cu_seqlens), in.decay_on(t[0].device()))};
  };
  const Tensor expected = calling(taylor_attention, in)(in.tensors)[0];
  const vector<Tensor> cotangents = random_like({expected});
  const auto expected_gradients = gradients(forward, in.tensors, cotangents);
  EXPECT_TRUE(close(forward(in.tensors)[0], expected, 1e-12));
  const Function op = on_device(forward, device());
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const vector<Tensor> inputs = as_type(in.tensors, type);
    EXPECT_TRUE(close(op(inputs)[0], expected, tolerance)) << type;
    const auto actual = gradients(op, inputs, as_type(cotangents, type));
    for (size_t i = 0; i < inputs.size(); ++i)
      EXPECT_TRUE(close(actual[i], expected_gradients[i], tolerance, /*floor=*/0.1)) << type << ", gradient " << i;
  }
}

TEST_P(TaylorAttentionOnDevices, StepsEqualTheParallelForm) {
  const Case c = lengths();
  const Inputs in = make_inputs(c);
  const at::NoGradGuard no_grad;
  const int64_t rows = static_cast<int64_t>(c.lengths.size());
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-4}}) {
    if (type == at::kDouble && in.tensors[0].size(0) > 1000) continue;  // the double step is slow
    vector<Tensor> t;
    for (const Tensor& x : as_type(in.tensors, type)) t.push_back(x.to(device()));
    const TaylorDecay decay = in.decay_on(device());
    const auto expected = calling(taylor_attention, in)(in.tensors);
    const int64_t features = kernels::packed_features(c.feature_dim);
    const at::TensorOptions options = at::dtype(type).device(device());
    TaylorState state{at::zeros({rows, c.heads, features, c.head_dim}, options), at::zeros({rows, c.heads, features}, options)};
    if (c.initial) state = {t[3].clone(), t[4].clone()};
    Tensor y = at::full_like(t[2], NAN);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t token = in.cu_seqlens[row].item<int64_t>(); token < in.cu_seqlens[row + 1].item<int64_t>(); ++token) {
        const auto one = [&](const Tensor& x) { return x.narrow(0, token, 1); };
        y[token].copy_(taylor_attention_step(one(t[0]), one(t[1]), one(t[2]), state, torch::tensor({row}).to(device()), decay)[0]);
      }
    EXPECT_TRUE(close(y, expected[0], tolerance));
    EXPECT_TRUE(close(state.kv, expected[1], tolerance));
    EXPECT_TRUE(close(state.k, expected[2], tolerance));
  }
}

TEST(TaylorAttention, Gradcheck) {
  for (const Case& c : {Case{{3, 0, 1, 7}, 2, 3, 2, true, true}, Case{{5, 5}, 1, 2, 3, false, false}, Case{{67}, 1, 2, 2, true, true},
                        Case{{3, 0, 1, 7}, 2, 3, 2, true, true, false}}) {
    const Inputs in = make_inputs(c);
    EXPECT_TRUE(gradcheck(calling(taylor_attention, in), in.tensors));
  }
  const Inputs in = make_inputs({{3, 2}, 2, 3, 2, true, true});
  EXPECT_TRUE(gradcheck(calling(taylor_attention_reference, in), in.tensors));
}

// The definition, over pairs of tokens: decay of the numerator's terms alone, and of both sums' terms.
TEST(TaylorAttention, DecayIsTheDefinitions) {
  for (const bool denominator : {true, false}) {
    const Inputs in = make_inputs({{20}, 3, 4, 5, false, true, denominator});
    const auto heads_first = [&](int i) { return in.tensors[static_cast<size_t>(i)].transpose(0, 1); };  // [heads, tokens, …]
    const Tensor a = at::matmul(heads_first(0), heads_first(1).transpose(1, 2)), w = (1 + a + a * a / 2).tril();
    const Tensor position = at::arange(20, at::kDouble), distance = (position.unsqueeze(1) - position).clamp_min(0);
    const Tensor decayed = w * in.decay.rates->view({-1, 1, 1}).pow(distance);
    const Tensor y = at::matmul(decayed, heads_first(2)) / (denominator ? decayed : w).sum(-1, /*keepdim=*/true);
    EXPECT_TRUE(close(calling(taylor_attention, in)(in.tensors)[0], y.transpose(0, 1), 1e-12)) << denominator;
  }
}

// A prefill from slots, and steps after it, keep the denominator's state undecayed.
TEST(TaylorAttention, TheUndecayedDenominatorCountsTokens) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Inputs in = make_inputs({{71}, 2, 4, 5, false, true, false});
    const vector<Tensor> t = as_type(in.tensors, type);
    const int64_t features = kernels::packed_features(4);
    TaylorState state{at::zeros({3, 2, features, 5}, type), at::zeros({3, 2, features}, type)};
    const Tensor slot = torch::tensor({2}, at::kLong);
    const auto part = [&](size_t i, int64_t first, int64_t count) { return t[i].narrow(0, first, count); };
    Tensor y = taylor_attention_prefill(part(0, 0, 70), part(1, 0, 70), part(2, 0, 70), offsets({70}), state, slot, in.decay);
    EXPECT_TRUE(at::allclose(state.k.select(2, 0)[2], at::full({2}, 70, type)));
    y = at::cat({y, taylor_attention_step(part(0, 70, 1), part(1, 70, 1), part(2, 70, 1), state, slot, in.decay)});
    EXPECT_TRUE(at::allclose(state.k.select(2, 0)[2], at::full({2}, 71, type)));
    EXPECT_TRUE(close(y, calling(taylor_attention, in)(in.tensors)[0], type == at::kDouble ? 1e-12 : 1e-4));
  }
}

TEST(TaylorAttention, FeaturesAreThePackedOnes) {
  const Tensor q = random({3, 2, 5}), k = random({3, 2, 5});
  const Tensor a = (q * k).sum(-1);
  EXPECT_EQ(taylor_features(q).size(-1), kernels::packed_features(5));
  EXPECT_TRUE(close((taylor_features(q) * taylor_features(k)).sum(-1), 1 + a + a * a / 2, 1e-13));
  const Tensor x = torch::tensor({2.0, 3.0}, at::kDouble);
  EXPECT_TRUE(close(taylor_features(x), torch::tensor({1.0, 2.0, 3.0, 4 * M_SQRT1_2, 6.0, 9 * M_SQRT1_2}, at::kDouble), 1e-14));
  EXPECT_TRUE(gradcheck([](const vector<Tensor>& in) { return vector<Tensor>{taylor_features(in[0])}; }, {q}));
}

TEST(TaylorAttention, ColumnSlicesEqualCopies) {
  torch::manual_seed(3);
  const Tensor wide = random({70, 3, 40}, at::kFloat), cu_seqlens = offsets({70});
  const Tensor q = wide.narrow(2, 0, 16), k = wide.narrow(2, 16, 16), v = wide.narrow(2, 32, 8);
  EXPECT_TRUE(same_bits(std::get<0>(taylor_attention(q, k, v, cu_seqlens)),
                        std::get<0>(taylor_attention(q.contiguous(), k.contiguous(), v.contiguous(), cu_seqlens))));
}

TEST(TaylorAttention, LaterTokensDoNotReachEarlierOnes) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Inputs in = make_inputs({{130}, 2, 16, 8});
    vector<Tensor> changed = as_type(in.tensors, type);
    const Tensor before = calling(taylor_attention, in)(changed)[0].clone();
    for (Tensor& t : changed) t.narrow(0, 100, 30).mul_(3);
    EXPECT_TRUE(same_bits(calling(taylor_attention, in)(changed)[0].narrow(0, 0, 100), before.narrow(0, 0, 100)));
  }
}

TEST(TaylorAttention, PackedRowsEqualRowsAlone) {
  const vector<int64_t> lengths{5, 0, 64, 1, 90};
  const Inputs in = make_inputs({lengths, 2, 16, 8, true});
  const vector<Tensor> t = as_type(in.tensors, at::kFloat);
  const auto packed = calling(taylor_attention, in)(t);
  for (int64_t row = 0; row < 5; ++row) {
    const int64_t first = in.cu_seqlens[row].item<int64_t>();
    vector<Tensor> alone;
    for (int i = 0; i < 3; ++i) alone.push_back(t[i].narrow(0, first, lengths[row]));
    for (int i = 3; i < 5; ++i) alone.push_back(t[i].narrow(0, row, 1));
    const auto separate = calling(taylor_attention, Inputs{{}, offsets({lengths[row]}), {}})(alone);
    EXPECT_TRUE(close(packed[0].narrow(0, first, lengths[row]), separate[0], 1e-6));
    EXPECT_TRUE(close(packed[1].narrow(0, row, 1), separate[1], 1e-6));
  }
}

BASED_ON_EVERY_DEVICE(TaylorAttentionRows);

TEST_P(TaylorAttentionRows, APrefillGoesOnFromSlots) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const auto& [type, sums] :
       {std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kFloat}, std::pair{at::kDouble, at::kDouble}}) {
    torch::manual_seed(6);
    const int64_t heads = 2, features = kernels::packed_features(16);
    const auto there = [&](at::IntArrayRef sizes, at::ScalarType dtype, double scale) { return random(sizes, dtype, scale).to(device); };
    const TaylorState start{there({6, heads, features, 24}, sums, 0.1), there({6, heads, features}, sums, 0.1) + 20};
    const Tensor q = there({835, heads, 16}, type, 0.5), k = there({835, heads, 16}, type, 0.5), v = there({835, heads, 24}, type, 1);
    const Tensor cu = offsets({700, 1, 0, 134}).to(device), slots = torch::tensor({5, 0, 3, 2}, at::kLong).to(device);
    TaylorState state{start.kv.clone(), start.k.clone()};
    const Tensor y = taylor_attention_prefill(q, k, v, cu, state, slots);
    const TaylorState initial{start.kv.index_select(0, slots), start.k.index_select(0, slots)};
    const auto [expected, last] = taylor_attention(q, k, v, cu, initial);
    EXPECT_TRUE(same_bits(y, expected)) << type;
    EXPECT_TRUE(same_bits(state.kv, start.kv.index_copy(0, slots, last.kv))) << type;
    EXPECT_TRUE(same_bits(state.k, start.k.index_copy(0, slots, last.k))) << type;
  }
}

// The columns of one projection, whose gradient the three are in the end; a head dimension of two slices, and sizes that no fast kernel
// takes.
TEST_P(TaylorAttentionRows, ColumnsOfOneTensorEqualCopies) {
  const int64_t heads = 3;
  for (const auto& [feature_dim, head_dim] : {std::pair{16, 64}, std::pair{8, 120}, std::pair{24, 64}, std::pair{16, 24}, std::pair{5, 7}})
    for (const auto& [type, with_state] : {std::pair{at::kBFloat16, true}, std::pair{at::kFloat, true}, std::pair{at::kFloat, false}}) {
      const NanFilledMemory nan_filled;
      torch::manual_seed(8);
      const bool states = with_state;
      const int64_t features = feature_dim, width = head_dim;
      const Tensor qkv = random({835, heads * (2 * features + width)}, type, 0.5), cu = offsets({700, 1, 0, 134});
      const auto attend = [&](bool copies) {
        const Function function = [=](const vector<Tensor>& t) {
          const auto parts = split_columns(t[0], {heads * features, heads * features, heads * width});
          vector<Tensor> in;
          for (const Tensor& part : parts) in.push_back(part.view({-1, heads, part.size(1) / heads}));
          if (copies)
            for (Tensor& x : in) x = x.contiguous();
          if (!states) return vector<Tensor>{taylor_attention_without_state(in[0], in[1], in[2], cu.to(t[0].device()))};
          const auto [y, state] = taylor_attention(in[0], in[1], in[2], cu.to(t[0].device()));
          return vector<Tensor>{y, state.kv, state.k};
        };
        return on_device(function, GetParam());
      };
      const auto expected = attend(true)({qkv}), actual = attend(false)({qkv}), cotangents = random_like(expected);
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << "output " << i << ", " << width;
      EXPECT_TRUE(same_bits(gradients(attend(false), {qkv}, cotangents)[0], gradients(attend(true), {qkv}, cotangents)[0])) << width;
    }
}

TEST_P(TaylorAttentionRows, AStepDependsOnNoOtherRow) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const auto& [type, sums] :
       {std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kFloat}, std::pair{at::kDouble, at::kDouble}}) {
    torch::manual_seed(5);
    const int64_t slots = 9, heads = 3, features = kernels::packed_features(16);
    const auto there = [&](at::IntArrayRef sizes, at::ScalarType dtype, double scale) { return random(sizes, dtype, scale).to(device); };
    const TaylorState start{there({slots, heads, features, 24}, sums, 0.1), there({slots, heads, features}, sums, 0.1) + 20};
    const Tensor q = there({5, heads, 16}, type, 0.5), k = there({5, heads, 16}, type, 0.5), v = there({5, heads, 24}, type, 1);
    const Tensor slot = torch::tensor({7, 0, 3, 8, 1}, at::kLong).to(device);
    TaylorState together{start.kv.clone(), start.k.clone()};
    const Tensor y = taylor_attention_step(q, k, v, together, slot);
    for (int64_t row = 0; row < 5; ++row) {
      TaylorState alone{start.kv.clone(), start.k.clone()};
      const auto one = [&](const Tensor& x) { return x.narrow(0, row, 1).clone(); };
      EXPECT_TRUE(same_bits(taylor_attention_step(one(q), one(k), one(v), alone, one(slot)), one(y)));
      const int64_t at_slot = slot[row].item<int64_t>();
      EXPECT_TRUE(same_bits(alone.kv[at_slot], together.kv[at_slot]));
      EXPECT_TRUE(same_bits(alone.k[at_slot], together.k[at_slot]));
    }
    for (const int64_t untouched : {2, 4, 5, 6}) EXPECT_TRUE(same_bits(together.kv[untouched], start.kv[untouched]));
  }
}

TEST(TaylorAttention, GradientsFlowOnlyFromTheFinalStateToo) {
  const Inputs in = make_inputs({{70, 3}, 2, 16, 8, true, true});
  const Function state_only = [&](const vector<Tensor>& t) { return vector<Tensor>{calling(taylor_attention, in)(t)[2]}; };
  const auto run = [&](at::ScalarType type) {
    vector<Tensor> leaves;
    for (const Tensor& t : as_type(in.tensors, type)) leaves.push_back(t.clone().requires_grad_());
    const Tensor k_state = state_only(leaves)[0];
    return torch::autograd::grad({k_state.square().sum()}, {leaves[1], leaves[4]});
  };
  const auto expected = run(at::kDouble), actual = run(at::kFloat);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(close(actual[i], expected[i], 1e-4)) << i;
}

TEST(TaylorAttention, ErrorsNameOperatorArgumentAndValue) {
  const auto call = [](const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu, const std::optional<Tensor>& decay = {}) {
    return error_of([&] { taylor_attention(q, k, v, cu, {}, decay); });
  };
  const Tensor q = at::zeros({4, 2, 16}), v = at::zeros({4, 2, 8}), cu = offsets({4});
  EXPECT_EQ(call(at::zeros({4, 2, 80}), at::zeros({4, 2, 80}), v, cu), "taylor_attention: feature_dim must be 1..64, got 80");
  EXPECT_EQ(call(q, at::zeros({4, 2, 8}), v, cu), "taylor_attention: k must have shape [4, 2, 16], got [4, 2, 8]");
  EXPECT_EQ(call(q, q, at::zeros({5, 2, 8}), cu), "taylor_attention: v must have shape [4, 2, any], got [5, 2, 8]");
  EXPECT_EQ(call(q, q, v.to(at::kDouble), cu), "taylor_attention: v must be Float, got Double");
  EXPECT_EQ(call(q.to(at::kInt), q, v, cu), "taylor_attention: q must be floating, got Int");
  EXPECT_EQ(call(q, q, v, cu.to(at::kInt)), "taylor_attention: cu_seqlens must be Long, got Int");
  EXPECT_EQ(call(q, q, v, offsets({5})), "taylor_attention: cu_seqlens must end at the number of tokens, 4, got 5");
  EXPECT_EQ(call(q, q, v, torch::tensor({0, 3, 2, 4}, at::kLong)), "taylor_attention: cu_seqlens must not decrease, got 3 then 2");
  EXPECT_EQ(call(q, q, v, torch::tensor({1, 4}, at::kLong)), "taylor_attention: cu_seqlens must start at 0, got 1");
  EXPECT_EQ(call(q, q, v, cu, torch::tensor({0.5, 1.5})), "taylor_attention: decay must be in (0, 1], got 1.5");
  EXPECT_EQ(error_of([&] {
              taylor_attention(q, q, v, cu, TaylorState{at::zeros({1, 2, 153, 9}), at::zeros({1, 2, 153})});
            }),
            "taylor_attention: kv_state must have shape [1, 2, 153, 8], got [1, 2, 153, 9]");
  TaylorState state{at::zeros({3, 2, 153, 8}), at::zeros({3, 2, 153})};
  const auto step = [&](const vector<int64_t>& slots) {
    const int64_t rows = static_cast<int64_t>(slots.size());
    return error_of([&] {
      taylor_attention_step(q.narrow(0, 0, rows), q.narrow(0, 0, rows), v.narrow(0, 0, rows), state, torch::tensor(slots, at::kLong));
    });
  };
  EXPECT_EQ(step({1, 3}), "taylor_attention_step: slots must be 0..2, got 3");
  EXPECT_EQ(step({1, 1}), "taylor_attention_step: slots must differ, got 1 twice");
  EXPECT_EQ(error_of([&] {
              taylor_attention_step(at::zeros({1, 2, 16}).requires_grad_(), q.narrow(0, 0, 1), v.narrow(0, 0, 1), state, offsets({}));
            }),
            "taylor_attention_step: works in place and has no gradient; turn gradients off around it");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none, cu = two_rows(), slots = five_slots();
  const int64_t features = kernels::packed_features(4);
  const Tensor q = f({5, 2, 4}), k = f({5, 2, 4}), v = f({5, 2, 6}), kv = f({2, 2, features, 6}), sums = f({2, 2, features}) + 20;
  const Tensor decay = torch::tensor({0.9F, 1.0F});
  return {
      {"taylor_attention", {q, k, v, cu, kv, sums, decay, true, true}},
      {"taylor_attention", {q, k, v, cu, kv, sums, decay, true, false}},
      {"taylor_attention", {q, k, v, cu, none, none, none, true, true}},
      {"taylor_attention", {q, k, v, cu, none, none, none, false, true}},
      {"taylor_attention_forward", {q, k, v, cu, kv, sums, decay, true, false}},
      {"taylor_attention_backward",
       {f({5, 2, 6}), f({2, 2, features, 6}), none, q, k, v, cu, kv, sums, decay, true, false, f({5, 2, 6}), f({5, 2}) + 9}},
      {"taylor_attention_backward", {f({5, 2, 6}), none, none, q, k, v, cu, none, none, none, false, true, f({5, 2, 6}), f({5, 2}) + 9}},
      {"taylor_attention_prefill",
       {q, k, v, cu, f({5, 2, features, 6}), f({5, 2, features}) + 20, torch::tensor({3, 0}, at::kLong), decay, false}},
      {"taylor_attention_step", {q, k, v, f({5, 2, features, 6}), f({5, 2, features}) + 20, slots, decay, 0.5, false}},
      {"taylor_attention_tokens",
       {q, k, v, f({5, 2, features, 6}), f({5, 2, features}) + 20, torch::tensor({2}, at::kLong), f({2, 2, features, 6}),
        f({2, 2, features}), int64_t{3}, decay, 0.5, false}},
      {"taylor_features", {q}},
  };
}

const DefineSchemaCases kSchemaCases("taylor_attention", schema_cases);

}  // namespace taylor_attention_test
}  // namespace based::ops
