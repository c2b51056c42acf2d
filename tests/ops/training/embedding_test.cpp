#include "based/ops/training/embedding.h"

#include "based/ops/framework/arguments.h"
#include "based/ops/training/cross_entropy.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace embedding_test {

using namespace testing;
using std::vector;

struct EmbeddingCase {
  int64_t tokens, rows, width;
  int64_t often = 0;  // so many tokens have the same row
};

Tensor make_ids(const EmbeddingCase& c) {
  torch::manual_seed(47);
  const Tensor ids = torch::randint(c.rows, {c.tokens}, at::kLong);
  if (c.often > 0) ids.narrow(0, (c.tokens - c.often) / 2, c.often).fill_(c.rows / 2);
  return ids;
}

BASED_ON_EVERY_DEVICE(Embeddings);

TEST_P(Embeddings, GradientsAreAddedToWhatIsThere) {
  // Rows of one token, of a few, of many pieces of 32; the first and the last row; widths that no kernel takes.
  for (const EmbeddingCase& c :
       {EmbeddingCase{0, 5, 8}, EmbeddingCase{1, 1, 8}, EmbeddingCase{33, 1, 16}, EmbeddingCase{1000, 7, 1032},
        EmbeddingCase{3000, 50257, 64, 1500}, EmbeddingCase{64, 70000, 24, 32}, EmbeddingCase{97, 2, 2056}, EmbeddingCase{300, 40, 7}})
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const NanFilledMemory nan_filled;
      const Tensor ids = make_ids(c), before = random({c.rows, c.width}, type), grad = random({c.tokens, c.width}, type);
      const Tensor expected = before.to(at::kDouble).index_add(0, ids, grad.to(at::kDouble));
      const auto run = [&] {
        Tensor sum = before.to(GetParam(), /*non_blocking=*/false, /*copy=*/true);
        embedding_backward_(sum, grad.to(GetParam()), ids.to(GetParam()));
        return sum;
      };
      const Tensor sum = run();
      EXPECT_TRUE(close(sum, expected, type == at::kBFloat16 ? 4e-3 : 1e-5)) << c.tokens << " tokens, " << c.rows << " rows, " << type;
      EXPECT_TRUE(same_bits(sum, run()));
    }
}

TEST_P(Embeddings, RowsWithDropoutHaveTheBitsOfDropoutOfTheRows) {
  // Rows of part of a block, of a whole one, longer ones; widths that are no multiple of 16 bytes.
  for (const EmbeddingCase& c : {EmbeddingCase{0, 5, 8}, EmbeddingCase{1, 1, 1}, EmbeddingCase{999, 30, 48}, EmbeddingCase{77, 9, 7},
                                 EmbeddingCase{65, 300, 1024}, EmbeddingCase{9, 5, 4104}, EmbeddingCase{6, 5, 515}})
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const NanFilledMemory nan_filled;
      const Draws draws{-7, torch::tensor(int64_t{12345678901}).to(GetParam())};
      const Tensor ids = make_ids(c).to(GetParam()), table = random({c.rows, c.width}, type).to(GetParam()).requires_grad_();
      const Tensor cotangent = random({c.tokens, c.width}, type).to(GetParam());
      for (const double p : {0.0, 0.3}) {
        const Tensor rows = tied_embedding(table, ids, p, draws, 5).rows;
        EXPECT_TRUE(same_bits(rows, dropout(at::embedding(table, ids), p, draws, 5))) << c.tokens << " x " << c.width << ", " << type;
        const Tensor gradient = torch::autograd::grad({rows}, {table}, {cotangent})[0], expected = at::zeros_like(gradient);
        embedding_backward_(expected, dropout(cotangent, p, draws, 5), ids);
        EXPECT_TRUE(same_bits(gradient, expected)) << c.tokens << " x " << c.width << ", " << type;
      }
    }
  // Not at an aligned address.
  const Tensor memory = random({8 * 48 + 1}, at::kFloat).to(GetParam()), ids = torch::tensor({7, 0, 7}, at::kLong).to(GetParam());
  const Tensor table = memory.narrow(0, 1, 8 * 48).view({8, 48});
  EXPECT_TRUE(same_bits(tied_embedding(table, ids).rows, at::embedding(table, ids)));
}

TEST_P(Embeddings, AStepBeginsWithRowsAndAdvancesPositions) {
  const at::NoGradGuard no_grad;
  for (const auto& [rows, vocab, width] : {std::tuple{0, 5, 8}, std::tuple{1, 9, 1792}, std::tuple{7, 300, 24}, std::tuple{5, 300, 7}})
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
      const NanFilledMemory nan_filled;
      torch::manual_seed(48);
      const Tensor table = random({vocab, width}, type), ids = torch::randint(-1, vocab, {rows}, at::kLong);
      const Tensor slots = torch::randperm(10, at::kLong).narrow(0, 0, rows), before = torch::randint(1000, {10}, at::kLong);
      Tensor seen = before.to(GetParam(), /*non_blocking=*/false, /*copy=*/true);
      const auto [y, positions] = embedding_step_(seen, slots.to(GetParam()), table.to(GetParam()), ids.to(GetParam()));
      EXPECT_EQ(y.scalar_type(), sum_type(table));
      EXPECT_TRUE(at::equal(y.cpu(), at::embedding(table, ids.clamp_min(0)).to(sum_type(table)))) << rows << " rows, " << type;
      EXPECT_TRUE(at::equal(seen.cpu(), before.index_add(0, slots, at::ones_like(slots))));
      EXPECT_TRUE(at::equal(positions.cpu(), before.index_select(0, slots)));
    }
  const Tensor seen = at::zeros({3}, at::kLong), table = at::zeros({4, 8});
  const auto slots = [](std::vector<int64_t> values) { return torch::tensor(values, at::kLong); };
  EXPECT_EQ(error_of([&] { embedding_step_(seen, slots({0, 3}), table, slots({1, 1})); }), "embedding_step_: slots must be 0..2, got 3");
  EXPECT_EQ(error_of([&] {
              embedding_step_(seen, slots({1, 1}), table, slots({1, 1}));
            }),
            "embedding_step_: slots must differ, got 1 twice");
  EXPECT_EQ(error_of([&] { embedding_step_(seen, slots({1}), table, at::zeros({1})); }), "embedding_step_: ids must be Long, got Float");
}

// As in a language model: the table gives the rows and the logits, and its gradient is that of both.
TEST_P(Embeddings, ATableUsedTwiceGetsBothGradients) {
  const Tensor ids = torch::tensor({3, 0, 3, 8, 3, 1, 8}, at::kLong), labels = torch::tensor({1, 2, -100, 8, 0, 0, 3}, at::kLong);
  const auto loss = [&](const vector<Tensor>& t, bool apart) {
    const Tensor ids_there = ids.to(t[0].device()), labels_there = labels.to(t[0].device());
    const Embedded in = apart ? Embedded{at::embedding(t[0], ids_there), t[0]} : tied_embedding(t[0], ids_there);
    return vector<Tensor>{cross_entropy(in.rows * t[1], in.table, labels_there)};
  };
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const vector<Tensor> in{random({9, 16}, type), random({16}, type)};
    const vector<Tensor> cotangent{torch::tensor(0.75, sum_type(in[0]))};
    const Function joint = on_device([&](const vector<Tensor>& t) { return loss(t, false); }, GetParam());
    const Function apart = on_device([&](const vector<Tensor>& t) { return loss(t, true); }, GetParam());
    const auto actual = gradients(joint, in, cotangent), expected = gradients(apart, in, cotangent);
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(close(actual[i], expected[i], type == at::kBFloat16 ? 2e-2 : 1e-5)) << i << ", " << type;
  }
  // One of the uses alone.
  const Tensor table = random({9, 4}).requires_grad_();
  const Embedded in = tied_embedding(table, ids);
  const Tensor both = torch::autograd::grad({in.rows.sum()}, {table}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(same_bits(both, at::zeros({9, 4}, at::kDouble).index_add(0, ids, at::ones({7, 4}, at::kDouble))));
  EXPECT_TRUE(same_bits(torch::autograd::grad({in.table.sum()}, {table}, {}, /*retain_graph=*/true)[0], at::ones({9, 4}, at::kDouble)));
  // A gradient tensor that the caller also holds is not modified.
  const Tensor table_gradient = at::ones({9, 4}, at::kDouble);
  torch::autograd::grad({in.rows, in.table}, {table}, {at::ones({7, 4}, at::kDouble), table_gradient});
  EXPECT_TRUE(same_bits(table_gradient, at::ones({9, 4}, at::kDouble)));
}

TEST(Embedding, ErrorsNameOperatorArgumentAndValue) {
  EXPECT_EQ(error_of([] {
              embedding_backward_(at::zeros({3, 4}), at::zeros({2, 5}), at::zeros({2}, at::kLong));
            }),
            "embedding_backward_: grad must have shape [2, 4], got [2, 5]");
  const Tensor ids = at::zeros({2}, at::kLong);
  EXPECT_EQ(error_of([&] {
              tied_embedding(at::zeros({3, 4}), ids, 0.5);
            }),
            "embedding_rows: p > 0 needs step, the number of the step that it draws for");
  EXPECT_EQ(error_of([&] { tied_embedding(at::zeros({3, 4}), ids, 1); }), "embedding_rows: p must be at least 0 and below 1, got 1");
  EXPECT_EQ(error_of([&] { tied_embedding(at::zeros({3, 4}), at::zeros({2})); }), "embedding_rows: ids must be Long, got Float");
}

}  // namespace embedding_test
}  // namespace based::ops
