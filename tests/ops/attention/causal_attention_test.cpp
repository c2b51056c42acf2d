#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/rotary.h"
#include "based/ops/attention/rotary_attention_step.h"
#include "based/ops/training/embedding.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace causal_attention_test {

using namespace testing;
using std::vector;

struct Case {
  vector<int64_t> queries, before;  // lengths of the rows; keys before the first query, a row (none where empty)
  int64_t heads = 2, kv_heads = 2, head_dim = 8, window = 0;
};

struct Inputs {
  vector<Tensor> tensors;  // q, k, v
  Tensor cu_seqlens_q, cu_seqlens_k;
  int64_t window;
  double scale;
  AttentionDropout dropout = {};
};

Inputs make_inputs(const Case& c) {
  torch::manual_seed(11);
  vector<int64_t> keys = c.queries;
  for (size_t i = 0; i < c.before.size(); ++i) keys[i] += c.before[i];
  const Tensor cu_q = offsets(c.queries), cu_k = offsets(keys);
  const int64_t q_tokens = cu_q[-1].item<int64_t>(), k_tokens = cu_k[-1].item<int64_t>();
  const auto representable = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  return {{representable(random({q_tokens, c.heads, c.head_dim})), representable(random({k_tokens, c.kv_heads, c.head_dim})),
           representable(random({k_tokens, c.kv_heads, c.head_dim}))},
          cu_q,
          cu_k,
          c.window,
          1 / std::sqrt(static_cast<double>(c.head_dim))};
}

Function calling(const Inputs& in, decltype(&causal_attention) op = causal_attention) {
  return [=](const vector<Tensor>& t) {
    const auto there = [&](const Tensor& starts) { return starts.to(t[0].device()); };
    AttentionDropout dropout = in.dropout;
    if (dropout.draws.step.defined()) dropout.draws.step = there(dropout.draws.step);
    return vector<Tensor>{op(t[0], t[1], t[2], there(in.cu_seqlens_q), there(in.cu_seqlens_k), in.window, in.scale, dropout)};
  };
}

vector<Tensor> as_type(const vector<Tensor>& tensors, at::ScalarType type) {
  vector<Tensor> result;
  for (const Tensor& t : tensors) result.push_back(t.to(type));
  return result;
}

// Loops over all pairs of a query and a key. The blockwise reference is compared with this.
Tensor by_pairs(const Inputs& in) {
  const Tensor &q = in.tensors[0], &k = in.tensors[1], &v = in.tensors[2];
  Tensor y = at::zeros_like(q);
  const Draws& draws = in.dropout.draws;
  const auto step = static_cast<uint64_t>(draws.step.defined() ? draws.step.item<int64_t>() : 0);
  const uint64_t key = kernels::dropout_key(static_cast<uint64_t>(draws.seed), step, static_cast<uint64_t>(in.dropout.place));
  const uint32_t threshold = kernels::dropout_threshold(in.dropout.p);
  for (int64_t row = 0; row + 1 < in.cu_seqlens_q.size(0); ++row) {
    const int64_t q_first = in.cu_seqlens_q[row].item<int64_t>(), queries = in.cu_seqlens_q[row + 1].item<int64_t>() - q_first;
    const int64_t k_first = in.cu_seqlens_k[row].item<int64_t>(), keys = in.cu_seqlens_k[row + 1].item<int64_t>() - k_first;
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t head = 0; head < q.size(1); ++head) {
        const int64_t kv_head = head / (q.size(1) / k.size(1)), self = i + keys - queries;
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          if (j > self || (in.window > 0 && j <= self - in.window)) continue;
          const double weight = std::exp(in.scale * (q[q_first + i][head] * k[k_first + j][kv_head]).sum().item<double>());
          sum += weight;
          const auto element = (static_cast<uint64_t>((q_first + i) * q.size(1) + head) << 20) + static_cast<uint64_t>(j);
          if (kernels::is_dropped(key, element, threshold)) continue;
          y[q_first + i][head] += v[k_first + j][kv_head] * weight / (1 - in.dropout.p);
        }
        y[q_first + i][head] /= sum;
      }
  }
  return y;
}

const vector<Case> kCases = {
    {{}, {}},
    {{0}, {}},
    {{1}, {}},
    {{2}, {}},
    {{63}, {}},
    {{64}, {}, 4, 2, 16, 16},
    {{65}, {}, 2, 1, 64, 64},
    {{0, 1, 0, 70, 2, 2, 0}, {}, 4, 4, 8, 5},
    {{3, 1, 0, 40}, {5, 0, 4, 64}, 4, 1, 24, 0},
    {{3, 1, 0, 40}, {5, 0, 4, 64}, 4, 2, 64, 17},
    {{255, 256, 257}, {}, 2, 2, 64, 64},
    {{300}, {}, 1, 1, 128, 1},
    {{65, 0, 130}, {}, 4, 2, 70, 0},
    {{40, 7}, {9, 30}, 2, 2, 70, 16},
    {{2048}, {}, 1, 1, 64, 64},
    {{2048}, {}, 1, 1, 32, 0},
};

class CausalAttentionCases : public ::testing::TestWithParam<std::tuple<Case, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Lengths, CausalAttentionCases, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kDevices)),
                         case_and_device<Case>);

TEST_P(CausalAttentionCases, KernelsEqualTheDoubleReference) {
  const NanFilledMemory nan_filled;
  const Inputs in = make_inputs(std::get<0>(GetParam()));
  const Function op = on_device(calling(in), std::get<1>(GetParam()));
  const auto expected = calling(in, causal_attention_reference)(in.tensors);
  const vector<Tensor> cotangents = random_like(expected);
  const auto expected_gradients = gradients(calling(in, causal_attention_reference), in.tensors, cotangents);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const vector<Tensor> inputs = as_type(in.tensors, type);
    EXPECT_TRUE(close(op(inputs)[0], expected[0], tolerance)) << type;
    const auto actual_gradients = gradients(op, inputs, as_type(cotangents, type));
    for (size_t i = 0; i < inputs.size(); ++i)  // with one key, the gradients of q and k are differences of equal numbers
      EXPECT_TRUE(close(actual_gradients[i], expected_gradients[i], tolerance, /*floor=*/0.1)) << type << ", gradient " << i;
  }
}

TEST(CausalAttention, ReferenceEqualsAllPairs) {
  for (const Case& c : {Case{{5, 0, 9}, {}, 4, 2, 3, 4}, Case{{4, 2}, {3, 0}, 2, 2, 5, 0}, Case{{3}, {9}, 3, 1, 4, 6}}) {
    const Inputs in = make_inputs(c);
    EXPECT_TRUE(close(calling(in)(in.tensors)[0], by_pairs(in), 1e-12));
    EXPECT_TRUE(close(calling(in, causal_attention_reference)(in.tensors)[0], by_pairs(in), 1e-12));
  }
}

Inputs with_dropout(const Case& c, double p, int64_t seed = 4, int64_t step = 9, int64_t place = 2) {
  Inputs in = make_inputs(c);
  in.dropout = {p, {seed, torch::tensor(step, at::kLong)}, place};
  return in;
}

TEST(CausalAttention, DropoutEqualsAllPairs) {
  for (const Case& c : {Case{{5, 0, 9}, {}, 4, 2, 3, 4}, Case{{4, 2}, {3, 0}, 2, 2, 5, 0}, Case{{5, 5}, {}, 3, 1, 4, 0}}) {
    const Inputs in = with_dropout(c, 0.4);
    EXPECT_TRUE(close(calling(in)(in.tensors)[0], by_pairs(in), 1e-12));
    EXPECT_FALSE(close(calling(in)(in.tensors)[0], calling(make_inputs(c))(in.tensors)[0], 1e-2));
    EXPECT_TRUE(gradcheck(calling(in), in.tensors));
  }
}

BASED_ON_EVERY_DEVICE(CausalAttentionDropout);

TEST_P(CausalAttentionDropout, KernelsEqualTheDoubleReference) {
  for (const Case& c : {Case{{70, 1, 0, 130}, {}, 1, 1, 128, 0}, Case{{70, 1, 0, 130}, {}, 2, 1, 48, 16},
                        Case{{64, 33}, {40, 0}, 4, 2, 64, 0}, Case{{40}, {}, 1, 1, 10, 0}, Case{{300}, {}, 1, 1, 136, 0}}) {
    const Inputs in = with_dropout(c, 0.1);
    const Function op = on_device(calling(in), GetParam());
    const auto expected = calling(in, causal_attention_reference)(in.tensors);
    const vector<Tensor> cotangents = random_like(expected);
    const auto expected_gradients = gradients(calling(in, causal_attention_reference), in.tensors, cotangents);
    for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
      const vector<Tensor> inputs = as_type(in.tensors, type);
      EXPECT_TRUE(close(op(inputs)[0], expected[0], tolerance)) << type << ", head_dim " << c.head_dim;
      const auto actual = gradients(op, inputs, as_type(cotangents, type));
      for (size_t i = 0; i < inputs.size(); ++i)
        EXPECT_TRUE(close(actual[i], expected_gradients[i], tolerance, /*floor=*/0.1)) << type << ", gradient " << i;
    }
  }
}

TEST_P(CausalAttentionDropout, IsAFunctionOfSeedStepAndPlace) {
  const Case c{{100, 28}, {}, 2, 2, 64, 0};
  const auto run = [&](const Inputs& in) { return on_device(calling(in), GetParam())(as_type(in.tensors, at::kFloat))[0]; };
  const Tensor y = run(with_dropout(c, 0.1));
  EXPECT_TRUE(same_bits(run(with_dropout(c, 0.1)), y));
  EXPECT_FALSE(close(run(with_dropout(c, 0.1, 5)), y, 1e-2));
  EXPECT_FALSE(close(run(with_dropout(c, 0.1, 4, 10)), y, 1e-2));
  EXPECT_FALSE(close(run(with_dropout(c, 0.1, 4, 9, 3)), y, 1e-2));
  EXPECT_TRUE(same_bits(run(with_dropout(c, 0)), run(make_inputs(c))));
}

TEST(CausalAttention, Gradcheck) {
  for (const Case& c : {Case{{5, 0, 6}, {}, 4, 2, 3, 4}, Case{{4, 2}, {3, 0}, 2, 2, 3, 0}}) {
    const Inputs in = make_inputs(c);
    EXPECT_TRUE(gradcheck(calling(in), in.tensors));
  }
}

BASED_ON_EVERY_DEVICE(CausalAttentionSteps);

TEST_P(CausalAttentionSteps, EqualTheParallelForm) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const int64_t capacity : {5, 40}) {  // a window that wraps round, and a cache that holds all
    const Inputs in = make_inputs({{17, 30}, {}, 4, 2, 16, capacity == 5 ? 5 : 0});
    const Tensor expected = calling(in)(in.tensors)[0];
    for (const auto& [type, ring_type, tolerance] :
         {std::tuple{at::kDouble, at::kDouble, 1e-12}, std::tuple{at::kFloat, at::kFloat, 1e-4},
          std::tuple{at::kFloat, at::kBFloat16, 1e-4}, std::tuple{at::kBFloat16, at::kBFloat16, 2e-2}}) {
      vector<Tensor> t;
      for (const Tensor& x : as_type(in.tensors, type)) t.push_back(x.to(device));
      Tensor k_ring = at::full({4, capacity, 2, 16}, NAN, at::dtype(ring_type).device(device)), v_ring = k_ring.clone();
      const Tensor seen = at::zeros({4}, at::dtype(at::kLong).device(device));
      Tensor y = at::full_like(t[0], NAN);
      const auto step = [&](const Tensor& tokens_here, const Tensor& slots_here) {
        const Tensor tokens = tokens_here.to(device), slots = slots_here.to(device);
        const auto at_tokens = [&](const Tensor& x) { return x.index_select(0, tokens); };
        y.index_copy_(0, tokens,
                      causal_attention_step(at_tokens(t[0]), at_tokens(t[1]), at_tokens(t[2]), k_ring, v_ring, seen.index_select(0, slots),
                                            slots, in.scale));
        seen.index_add_(0, slots, at::ones_like(slots));
      };
      for (int64_t i = 0; i < 17; ++i) step(torch::tensor({i, 17 + i}), torch::tensor({3, 1}, at::kLong));
      for (int64_t i = 17; i < 30; ++i) step(torch::tensor({17 + i}), torch::tensor({1}, at::kLong));
      EXPECT_TRUE(close(y, expected, tolerance)) << type << " ring " << ring_type << " capacity " << capacity;
    }
  }
}

TEST_P(CausalAttentionSteps, WithRotaryAreTheTwoOneAfterTheOther) {
  const at::NoGradGuard no_grad;
  struct Sizes {
    int64_t rows, heads, kv_heads, head_dim, dim, capacity;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Sizes& s : {Sizes{5, 16, 16, 64, 64, 64}, Sizes{3, 4, 2, 112, 112, 16}, Sizes{140, 8, 8, 128, 128, 20},
                           Sizes{2, 4, 4, 64, 32, 7}, Sizes{3, 6, 2, 24, 24, 9}}) {
      torch::manual_seed(6);
      const auto there = [&](at::IntArrayRef sizes) { return random(sizes, type).to(GetParam()); };
      Tensor k_ring = there({s.rows + 2, s.capacity, s.kv_heads, s.head_dim}), v_ring = there(k_ring.sizes());
      const Tensor positions = (at::arange(s.rows, at::kLong) * 1001 % 5000).to(GetParam());
      Tensor k_apart = k_ring.clone(), v_apart = v_ring.clone();
      const Tensor slots = (at::arange(s.rows, at::kLong) + 1).to(GetParam()),
                   qkv = there({s.rows, (s.heads + 2 * s.kv_heads) * s.head_dim});
      const Tensor turned = rotary_(qkv.clone(), positions, {s.heads + s.kv_heads, s.head_dim, s.dim, 500});
      const Tensor all = turned.view({s.rows, -1, s.head_dim});
      const Tensor expected =
          causal_attention_step(all.narrow(1, 0, s.heads), all.narrow(1, s.heads, s.kv_heads),
                                all.narrow(1, s.heads + s.kv_heads, s.kv_heads), k_apart, v_apart, positions, slots, 0.2);
      EXPECT_TRUE(close(rotary_attention_step(qkv.clone(), k_ring, v_ring, positions, slots, 0.2, s.dim, 500), expected, 1e-2))
          << s.head_dim;
      EXPECT_TRUE(close(k_ring, k_apart, type == at::kBFloat16 ? 4e-3 : 1e-6)) << s.head_dim;
      EXPECT_TRUE(same_bits(v_ring, v_apart)) << s.head_dim;
    }
  }
}

// In a recorded step a kernel may start before the one that writes its positions has ended.
TEST_P(CausalAttentionSteps, TakePositionsThatAreWrittenRightBefore) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(8);
  for (const auto& [rows, heads, head_dim] : {std::tuple{1, 16, 64}, std::tuple{3, 4, 112}, std::tuple{140, 8, 128}}) {
    const auto there = [&](at::IntArrayRef sizes) { return random(sizes, at::kBFloat16).to(GetParam()); };
    const Tensor k_start = there({rows, 16, heads, head_dim}), v_start = there(k_start.sizes()), table = there({9, 1024});
    const Tensor qkv = there({rows, 3 * heads * head_dim}), slots = at::arange(rows, at::kLong).flip(0).to(GetParam());
    for (int round = 0; round < 20; ++round) {
      const Tensor before = torch::randint(5000, {rows}, at::kLong).to(GetParam()), positions = before.index_select(0, slots);
      Tensor k_ring = k_start.clone(), v_ring = v_start.clone(), k_then = k_start.clone(), v_then = v_start.clone();
      const Tensor expected = rotary_attention_step(qkv.clone(), k_ring, v_ring, positions, slots, 0.2, head_dim, 500);
      const Tensor columns = qkv.clone(), seen = before.clone(), ids = at::zeros_like(slots);
      const EmbeddedStep begun = embedding_step_(seen, slots, table, ids);
      const Tensor y = rotary_attention_step(columns, k_then, v_then, begun.positions, slots, 0.2, head_dim, 500);
      EXPECT_TRUE(same_bits(y, expected)) << rows;
      EXPECT_TRUE(same_bits(k_then, k_ring) && same_bits(v_then, v_ring)) << rows;
    }
  }
}

TEST_P(CausalAttentionSteps, DependOnNoOtherRow) {
  const at::DeviceType device = GetParam();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(5);
    const auto there = [&](at::IntArrayRef sizes) { return random(sizes, type).to(device); };
    const Tensor k_start = there({9, 20, 2, 24}), v_start = there({9, 20, 2, 24});
    const Tensor positions = torch::tensor({40, 0, 19, 2, 50}, at::kLong).to(device);
    const Tensor q = there({5, 6, 24}), k = there({5, 2, 24}), v = there({5, 2, 24});
    const Tensor slot = torch::tensor({7, 0, 3, 8, 5}, at::kLong).to(device);
    Tensor k_ring = k_start.clone(), v_ring = v_start.clone();
    const Tensor y = causal_attention_step(q, k, v, k_ring, v_ring, positions, slot, 0.2);
    for (int64_t row = 0; row < 5; ++row) {
      const auto one = [&](const Tensor& x) { return x.narrow(0, row, 1).clone(); };
      Tensor k_alone = k_start.clone(), v_alone = v_start.clone();
      EXPECT_TRUE(same_bits(causal_attention_step(one(q), one(k), one(v), k_alone, v_alone, one(positions), one(slot), 0.2), one(y)));
      const int64_t at_slot = slot[row].item<int64_t>();
      EXPECT_TRUE(same_bits(k_alone[at_slot], k_ring[at_slot]));
      EXPECT_TRUE(same_bits(v_alone[at_slot], v_ring[at_slot]));
    }
  }
}

BASED_ON_EVERY_DEVICE(CausalAttentionSlices);

TEST_P(CausalAttentionSlices, EqualCopies) {
  const at::DeviceType device = GetParam();
  torch::manual_seed(3);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor wide = random({70, 6 * 16}, type).to(device), cu = offsets({70});
    const auto part = [&](int64_t i) { return wide.narrow(1, i * 32, 32).view({70, 2, 16}); };
    const auto run = [&](const Tensor& q, const Tensor& k, const Tensor& v) { return calling({{}, cu, cu, 9, 0.25})({q, k, v})[0]; };
    EXPECT_TRUE(same_bits(run(part(0), part(1), part(2)), run(part(0).contiguous(), part(1).contiguous(), part(2).contiguous())));
    // Heads that are not adjacent in memory, and head dimensions that are not.
    const Tensor across = random({70, 16, 2}, type).to(device).transpose(1, 2);
    EXPECT_TRUE(same_bits(run(across, part(1), across), run(across.contiguous(), part(1), across.contiguous())));
  }
}

BASED_ON_EVERY_DEVICE(CausalAttentionRows);

TEST_P(CausalAttentionRows, ThatAreNotFiniteChangeNoOther) {
  for (const Case& c :
       {Case{{40, 33, 1, 100, 65, 1, 63}, {}, 4, 2, 64, 0}, Case{{40, 33, 1, 100, 65, 1, 63}, {}, 2, 2, 64, 16},
        Case{{40, 33, 130}, {}, 2, 1, 128, 0}, Case{{40, 33, 130}, {}, 2, 2, 136, 0}, Case{{1030, 900, 1300}, {}, 1, 1, 64, 0}}) {
    const Inputs in = make_inputs(c);
    const Function op = on_device(calling(in), GetParam());
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const vector<Tensor> inputs = as_type(in.tensors, type), cotangents = random_like({inputs[0]});
      const auto results = [&](const vector<Tensor>& t, const vector<Tensor>& output_gradients) {
        vector<Tensor> all = gradients(op, t, output_gradients);
        all.push_back(op(t)[0]);
        return all;
      };
      const vector<Tensor> expected = results(inputs, cotangents);
      for (const double poison : {std::nan(""), HUGE_VAL}) {
        vector<Tensor> bad = inputs, bad_cotangents = cotangents;
        for (Tensor& t : bad) t = t.clone();
        bad_cotangents[0] = cotangents[0].clone();
        const auto row = [&](const Tensor& t, size_t number) {
          const int64_t begin = in.cu_seqlens_q[static_cast<int64_t>(number)].item<int64_t>();
          return t.narrow(0, begin, c.queries[number]);
        };
        for (size_t number = 1; number < c.queries.size(); number += 2) {
          for (const Tensor& t : bad) row(t, number).fill_(poison);
          row(bad_cotangents[0], number).fill_(poison);
        }
        const vector<Tensor> actual = results(bad, bad_cotangents);
        for (size_t i = 0; i < actual.size(); ++i)
          for (size_t number = 0; number < c.queries.size(); number += 2)
            EXPECT_TRUE(at::equal(row(actual[i], number), row(expected[i], number)))
                << type << ", head_dim " << c.head_dim << ", window " << c.window << ", " << poison << ", result " << i << ", row "
                << number;
      }
    }
  }
}

TEST(CausalAttention, LaterTokensDoNotReachEarlierOnes) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const Inputs in = make_inputs({{130}, {}, 2, 2, 16, 0});
    vector<Tensor> changed = as_type(in.tensors, type);
    const Tensor before = calling(in)(changed)[0].clone();
    for (Tensor& t : changed) t.narrow(0, 100, 30).mul_(3);
    EXPECT_TRUE(close(calling(in)(changed)[0].narrow(0, 0, 100), before.narrow(0, 0, 100), 1e-6));
  }
}

TEST(CausalAttention, ErrorsNameOperatorArgumentAndValue) {
  const Tensor q = at::zeros({4, 4, 16}), k = at::zeros({6, 2, 16}), cu_q = offsets({4}), cu_k = offsets({6});
  const auto call = [](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& cu_a, const Tensor& cu_b, int64_t window = 0) {
    return error_of([&] { causal_attention(a, b, c, cu_a, cu_b, window, 1); });
  };
  EXPECT_EQ(call(q, k, k, cu_q, cu_k, -1), "causal_attention: window must be at least 0, got -1");
  EXPECT_EQ(call(q, at::zeros({6, 3, 16}), at::zeros({6, 3, 16}), cu_q, cu_k),
            "causal_attention: heads must be a multiple of kv_heads, got 4 and 3");
  EXPECT_EQ(call(q, k, at::zeros({6, 2, 8}), cu_q, cu_k), "causal_attention: v must have shape [6, 2, 16], got [6, 2, 8]");
  EXPECT_EQ(call(at::zeros({4, 4, 300}), k, k, cu_q, cu_k), "causal_attention: head_dim must be 1..256, got 300");
  EXPECT_EQ(call(at::zeros({6, 2, 16}), at::zeros({4, 2, 16}), at::zeros({4, 2, 16}), cu_k, cu_q),
            "causal_attention: a row must have at least as many keys as queries, got 4 and 6 in row 0");
  EXPECT_EQ(call(q, k, k, cu_q, offsets({5})), "causal_attention: cu_seqlens_k must end at the number of tokens, 6, got 5");
  const auto dropping = [&](double p, const Tensor& step) {
    return error_of([&] { causal_attention(q, k, k, cu_q, cu_k, 0, 1, {p, {0, step}, 0}); });
  };
  EXPECT_EQ(dropping(1, torch::tensor(0)), "causal_attention: dropout_p must be in [0, 1), got 1");
  EXPECT_EQ(dropping(0.1, Tensor()), "causal_attention: dropout needs step");
  Tensor ring = at::zeros({3, 8, 2, 16}), v_ring = ring.clone();
  const Tensor positions = at::zeros({4}, at::kLong);
  EXPECT_EQ(error_of([&] {
              causal_attention_step(q, k.narrow(0, 0, 4), k.narrow(0, 0, 4), ring, v_ring, positions, offsets({1, 1, 1}), 1);
            }),
            "causal_attention_step: slots must be 0..2, got 3");
  EXPECT_EQ(error_of([&] {
              rotary_attention_step(at::zeros({3, 90}), ring, v_ring, positions, offsets({1, 1}), 1, 16, 1e4);
            }),
            "rotary_attention_step: qkv must have shape [any, 80], got [3, 90]");
}

BASED_ON_EVERY_DEVICE(DroppedAttention);

// A row with the number of tokens before it drops the weights that it drops among the other rows; so do its gradients.
TEST_P(DroppedAttention, RowsAloneDrawAsTogether) {
  const auto starts = [&](std::vector<int64_t> rows) { return torch::tensor(rows, at::kLong).to(GetParam()); };
  const auto part = [&](const Tensor& x, int64_t first, int64_t count) { return x.narrow(0, first, count).clone().requires_grad_(); };
  const Tensor q = random({30, 4, 8}, at::kFloat).to(GetParam()), k = random({30, 2, 8}, at::kFloat).to(GetParam()),
               v = random({30, 2, 8}, at::kFloat).to(GetParam());
  AttentionDropout dropout{0.3, {5, torch::tensor(2, at::kLong).to(GetParam())}, 1};
  const auto results = [&](int64_t first, int64_t count, const Tensor& rows) {
    const Tensor a = part(q, first, count), b = part(k, first, count), c = part(v, first, count);
    const Tensor y = causal_attention(a, b, c, rows, rows, 7, 0.4, dropout);
    std::vector<Tensor> found = torch::autograd::grad({y.square().sum()}, {a, b, c});
    found.push_back(y.detach());
    return found;
  };
  const std::vector<Tensor> together = results(0, 30, starts({0, 11, 30}));
  dropout.draws.first_token = 11;
  const std::vector<Tensor> alone = results(11, 19, starts({0, 19}));
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_LT((alone[i] - together[i].narrow(0, 11, 19)).abs().max().item<double>(), 1e-4) << i;
  dropout.draws.first_token = 10;
  EXPECT_GT((results(11, 19, starts({0, 19}))[3] - alone[3]).abs().max().item<double>(), 1e-2);
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue none, cu = two_rows(), slots = five_slots(), step = torch::tensor(7, at::kLong);
  const Tensor q = f({5, 2, 8}), k = f({5, 1, 8}), v = f({5, 1, 8}), positions = torch::tensor({0, 1, 2, 3, 9}, at::kLong);
  return {
      {"causal_attention", {q, k, v, cu, cu, int64_t{2}, 0.3, 0.0, int64_t{0}, none, int64_t{0}, int64_t{0}}},
      {"causal_attention_forward", {q, k, v, cu, cu, int64_t{0}, 0.3, 0.0, int64_t{0}, none, int64_t{0}, int64_t{0}}},
      {"causal_attention", {q, k, v, cu, cu, int64_t{2}, 0.3, 0.2, int64_t{3}, step, int64_t{1}, int64_t{5}}},
      {"causal_attention_backward",
       {f({5, 2, 8}), q, k, v, cu, cu, int64_t{2}, 0.3, 0.0, int64_t{0}, none, int64_t{0}, int64_t{0}, f({5, 2, 8}), f({5, 2})}},
      {"causal_attention_step", {q, k, v, f({5, 4, 1, 8}), f({5, 4, 1, 8}), positions, slots, 0.3}},
      {"rotary_attention_step", {f({5, 32}), f({5, 4, 1, 8}), f({5, 4, 1, 8}), at::arange(1, 6), slots, 0.3, int64_t{6}, 100.0}},
      {"rotary_attention_tokens",
       {f({5, 32}), f({5, 4, 1, 8}), f({5, 4, 1, 8}), at::arange(1, 6), torch::tensor({2}, at::kLong), f({2, 4, 1, 8}), f({2, 4, 1, 8}),
        int64_t{3}, 0.3, int64_t{6}, 100.0}},
  };
}

const DefineSchemaCases kSchemaCases("causal_attention", schema_cases);

}  // namespace causal_attention_test
}  // namespace based::ops
