#include "based/ops/attention/paged_attention.h"

#include "based/ops/attention/causal_attention.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace paged_attention_test {

using namespace testing;
using std::vector;

struct Case {
  int64_t heads, kv_heads, head_dim, page_tokens;
  vector<int64_t> lengths;  // lengths of the sequences in slots 0, 1, …
};

// Pools filled with NaN, and a page table in shuffled order with pages for each sequence and `more` tokens.
AttentionCache make_cache(const Case& c, const vector<int64_t>& lengths, int64_t more, at::ScalarType type, at::DeviceType device) {
  const auto slots = static_cast<int64_t>(lengths.size());
  int64_t pages = 0, slot_pages = 1;
  vector<int64_t> counts;
  for (const int64_t length : lengths) {
    counts.push_back((length + more + c.page_tokens - 1) / c.page_tokens);
    pages += counts.back(), slot_pages = std::max(slot_pages, counts.back());
  }
  const Tensor order = at::randperm(pages + 3, at::kLong), table = at::full({slots, slot_pages}, -1, at::kLong);
  int64_t next = 0;
  for (int64_t slot = 0; slot < slots; ++slot)
    for (int64_t i = 0; i < counts[slot]; ++i) table[slot][i] = order[next++];
  const Tensor pool = at::full({pages + 3, c.page_tokens, c.kv_heads, c.head_dim}, NAN, at::dtype(type).device(device));
  return {pool, pool.clone(), table.to(device)};
}

struct Texts {
  vector<Tensor> q, k, v;  // one per sequence, [tokens, heads, head_dim]
};

Texts draw(const Case& c, const vector<int64_t>& lengths) {
  Texts texts;
  const auto representable = [](const Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  for (const int64_t length : lengths) {
    texts.q.push_back(representable(random({length, c.heads, c.head_dim})));
    texts.k.push_back(representable(random({length, c.kv_heads, c.head_dim})));
    texts.v.push_back(representable(random({length, c.kv_heads, c.head_dim})));
  }
  return texts;
}

// Processes token `t` of all sequences that have one in one call; results are [tokens, heads, head_dim] per sequence.
vector<Tensor> by_steps(const Texts& texts, const AttentionCache& cache, double scale) {
  const auto options = cache.k.options();
  vector<vector<Tensor>> rows(texts.q.size());
  for (int64_t t = 0;; ++t) {
    vector<int64_t> slots;
    for (auto slot = static_cast<int64_t>(texts.q.size()); slot-- > 0;)
      if (t < texts.q[slot].size(0)) slots.push_back(slot);
    if (slots.empty()) break;
    const auto gather = [&](const vector<Tensor>& sequences) {
      vector<Tensor> tokens;
      for (const int64_t slot : slots) tokens.push_back(sequences[slot][t]);
      return at::stack(tokens).to(options);
    };
    const Tensor at_slots = torch::tensor(slots, at::kLong).to(options.device());
    const Tensor y =
        paged_attention_step(gather(texts.q), gather(texts.k), gather(texts.v), cache, at::full_like(at_slots, t), at_slots, scale);
    for (size_t i = 0; i < slots.size(); ++i) rows[slots[i]].push_back(y[static_cast<int64_t>(i)]);
  }
  vector<Tensor> all;
  for (size_t slot = 0; slot < rows.size(); ++slot) all.push_back(rows[slot].empty() ? Tensor() : at::stack(rows[slot]));
  return all;
}

const vector<Case> kCases = {
    {2, 2, 16, 4, {17, 0, 1, 30}}, {4, 1, 64, 16, {40, 3}}, {4, 2, 64, 64, {130, 64, 65}}, {8, 2, 128, 1, {9, 2}},
    {3, 1, 5, 2, {21, 7}},         {2, 1, 24, 8, {33}},     {1, 1, 256, 32, {70, 33}},
};

class PagedAttentionCases : public ::testing::TestWithParam<std::tuple<Case, at::DeviceType>> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<1>(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Texts, PagedAttentionCases, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kDevices)));

TEST_P(PagedAttentionCases, StepsEqualPlainAttentionInDouble) {
  const NanFilledMemory nan_filled;
  const at::NoGradGuard no_grad;
  const auto& [c, device] = GetParam();
  torch::manual_seed(61);
  const Texts texts = draw(c, c.lengths);
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}}) {
    const AttentionCache cache = make_cache(c, c.lengths, 0, type, device);
    const vector<Tensor> found = by_steps(texts, cache, scale);
    for (size_t slot = 0; slot < found.size(); ++slot) {
      if (!found[slot].defined()) continue;
      const Tensor cu = offsets({c.lengths[slot]});
      const Tensor expected = causal_attention_reference(texts.q[slot], texts.k[slot], texts.v[slot], cu, cu, 0, scale);
      EXPECT_TRUE(close(found[slot], expected, tolerance)) << type << ", slot " << slot;
    }
  }
}

BASED_ON_EVERY_DEVICE(PagedAttention);

// Long sequences: on a GPU, with few rows several blocks share a row's keys; with 140 rows they do not.
TEST_P(PagedAttention, LongTextsEqualTheReference) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(62);
  for (const auto& [type, tolerance] : {std::pair{at::kFloat, 1e-4}, std::pair{at::kBFloat16, 2e-2}})
    for (const int64_t rows : {1, 3, 140}) {
      const Case c{8, 4, 64, 64, {}};
      vector<int64_t> lengths;
      for (int64_t row = 0; row < rows; ++row) lengths.push_back(row < 3 ? 700 * (3 - row) + row : row);
      const AttentionCache cache = make_cache(c, lengths, 1, type, GetParam());
      cache.k.normal_(), cache.v.normal_();
      const Tensor positions = torch::tensor(lengths, at::kLong).to(GetParam());
      const auto one_token = [&](int64_t heads) { return random({rows, heads, c.head_dim}, type).to(GetParam()); };
      const Tensor q = one_token(8), k = one_token(4), v = one_token(4), slots = at::arange(rows, positions.options());
      const auto wide = [](const Tensor& x) { return x.cpu().to(at::kDouble); };
      const AttentionCache exact{wide(cache.k), wide(cache.v), cache.page_table.cpu()};
      const Tensor expected = paged_attention_step_reference(wide(q), wide(k), wide(v), exact, positions.cpu(), slots.cpu(), 0.125);
      EXPECT_TRUE(close(paged_attention_step(q, k, v, cache, positions, slots, 0.125), expected, tolerance)) << type << ' ' << rows;
      EXPECT_TRUE(same_bits(cache.k.cpu().to(at::kDouble), exact.k));
    }
}

// With the same number of rows, a sequence's result does not depend on the other sequences. On the CPU the number of rows does not matter.
TEST_P(PagedAttention, ARowDependsOnNoOtherRow) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(63);
  const Case c{6, 2, 24, 8, {}};
  const vector<int64_t> lengths{300, 3, 64, 900, 17};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto draw_row = [&](int64_t heads) { return random({5, heads, 24}, type).to(GetParam()); };
    const Tensor q = draw_row(6), k = draw_row(2), v = draw_row(2), other_q = draw_row(6), other_k = draw_row(2), other_v = draw_row(2);
    AttentionCache cache = make_cache(c, lengths, 3, type, GetParam());
    cache.k.normal_(), cache.v.normal_();
    const Tensor slots = torch::tensor({3, 0, 4, 1, 2}, at::kLong).to(GetParam());
    const Tensor positions = torch::tensor(lengths, at::kLong).to(GetParam()).index_select(0, slots);
    const auto copy = [&] { return AttentionCache{cache.k.clone(), cache.v.clone(), cache.page_table.clone()}; };
    const Tensor y = paged_attention_step(q, k, v, copy(), positions, slots, 0.2);
    for (int64_t row = 0; row < 5; ++row) {
      const Tensor other_positions = positions.div(2, "floor");
      other_positions[row].copy_(positions[row]);
      const auto with_own = [&](Tensor all, const Tensor& own) { return all = all.clone(), all[row].copy_(own[row]), all; };
      const Tensor in_others =
          paged_attention_step(with_own(other_q, q), with_own(other_k, k), with_own(other_v, v), copy(), other_positions, slots, 0.2);
      EXPECT_TRUE(same_bits(in_others[row], y[row])) << type << ' ' << row;
      if (GetParam() != at::kCPU) continue;
      const auto one = [&](const Tensor& x) { return x.narrow(0, row, 1); };
      EXPECT_TRUE(same_bits(paged_attention_step(one(q), one(k), one(v), copy(), one(positions), one(slots), 0.2)[0], y[row]))
          << type << ' ' << row;
    }
  }
}

TEST_P(PagedAttention, ASlotWithoutAPageIsIdle) {
  const at::NoGradGuard no_grad;
  const NanFilledMemory nan_filled;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto options = at::dtype(type).device(GetParam());
    const AttentionCache cache{at::full({3, 4, 2, 8}, NAN, options), at::full({3, 4, 2, 8}, NAN, options),
                               torch::tensor({2, 0, -1, -1, 1, -1}, at::kLong).view({3, 2}).to(GetParam())};
    const Tensor positions = torch::tensor({8, 3, 0}, at::kLong).to(GetParam());  // full, without pages, empty
    const Tensor x = at::ones({3, 2, 8}, options), slots = at::arange(3, positions.options());
    const Tensor y = paged_attention_step(x, x, x, cache, positions, slots, 1);
    EXPECT_TRUE(at::equal(y.cpu().to(at::kFloat), torch::tensor({0.F, 0.F, 1.F}).view({3, 1, 1}).expand({3, 2, 8}))) << y;
    EXPECT_EQ(cache.k.isnan().sum().item<int64_t>(), (3 * 4 - 1) * 2 * 8);
  }
}

TEST(PagedAttentionErrors, NameOperatorArgumentAndValue) {
  const Tensor q = at::zeros({2, 4, 8}), k = at::zeros({2, 2, 8}), pool = at::zeros({3, 4, 2, 8}), slots = torch::tensor({0, 1}, at::kLong);
  const Tensor table = at::zeros({2, 2}, at::kLong), zeros = at::zeros({2}, at::kLong);
  const auto call = [&](const AttentionCache& cache, const Tensor& positions) {
    return error_of([&] { paged_attention_step(q, k, k, cache, positions, slots, 1); });
  };
  EXPECT_EQ(call({at::zeros({3, 6, 2, 8}), at::zeros({3, 6, 2, 8}), table}, zeros),
            "paged_attention_step: a page must hold a power of two of tokens, got 6");
  EXPECT_EQ(call({pool, at::zeros({2, 4, 2, 8}), table}, zeros),
            "paged_attention_step: v_pages must have shape [3, 4, 2, 8], got [2, 4, 2, 8]");
  EXPECT_EQ(call({pool, pool.clone(), table}, at::zeros({3}, at::kLong)), "paged_attention_step: positions must have shape [2], got [3]");
  EXPECT_EQ(call({pool, pool.clone(), at::full({2, 2}, 3, at::kLong)}, zeros),
            "paged_attention: page_table must name pages of the pool for all keys of a slot");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const c10::IValue slots = five_slots();
  const Tensor table = at::arange(10, at::kLong).view({5, 2}), positions = torch::tensor({0, 1, 2, 3, 5}, at::kLong);
  return {{"paged_attention_step",
           {f({5, 2, 8}), f({5, 1, 8}), f({5, 1, 8}), f({10, 4, 1, 8}), f({10, 4, 1, 8}), table, positions, slots, 0.3}}};
}

Calls calls(at::Device device) {
  const auto random_on_device = [&](at::IntArrayRef sizes) { return random(sizes, at::kBFloat16).to(device); };
  const Tensor q = random_on_device({3, 4, 64}), k = random_on_device({3, 4, 64}), v = random_on_device({3, 4, 64});
  const Tensor positions = torch::tensor({63, 1100, 0}, at::kLong).to(device), slots = torch::tensor({2, 0, 1}, at::kLong).to(device);
  const AttentionCache cache{random_on_device({60, 64, 4, 64}), random_on_device({60, 64, 4, 64}),
                             at::arange(60, slots.options()).flip(0).view({3, 20})};
  return [=] {
    const Tensor y = paged_attention_step(q, k, v, cache, positions, slots, 0.125);
    return std::vector<Tensor>{y, cache.k.clone()};
  };
}

const DefineSchemaCases kSchemaCases("paged_attention", schema_cases);
const DefineCalls kCalls("paged_attention", calls);

}  // namespace paged_attention_test
}  // namespace based::ops
