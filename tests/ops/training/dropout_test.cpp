#include "based/ops/training/dropout.h"

#include "based/ops/training/embedding.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace dropout_test {

using namespace testing;

Draws draws_of(int64_t seed, int64_t step, at::Device device) { return {seed, torch::tensor(step, at::kLong).to(device)}; }

BASED_ON_EVERY_DEVICE(DropoutOnDevices);

TEST_P(DropoutOnDevices, EqualsTheReferenceBitForBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble})
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0, 5}, {1}, {7, 3}, {33, 48}, {2, 3, 1024}})
      for (const int64_t step : {int64_t{0}, int64_t{12345678901}}) {
        const NanFilledMemory nan_filled;
        const Tensor x = random(sizes, type);
        const Tensor expected = dropout_reference(x, 0.3, draws_of(-7, step, at::kCPU), 5);
        EXPECT_TRUE(same_bits(dropout(x.to(GetParam()), 0.3, draws_of(-7, step, GetParam()), 5).cpu(), expected)) << type << sizes;
      }
  // Not contiguous, and not at an aligned address: elements are numbered in the order of the sizes.
  const Tensor x = random({40, 9}, at::kFloat).to(GetParam());
  const Draws draws = draws_of(1, 2, GetParam());
  EXPECT_TRUE(same_bits(dropout(x.t(), 0.5, draws, 0), dropout(x.t().contiguous(), 0.5, draws, 0)));
  const Tensor part = x.flatten().narrow(0, 1, 100);
  EXPECT_TRUE(same_bits(dropout(part, 0.5, draws, 0), dropout(part.clone(), 0.5, draws, 0)));
}

TEST_P(DropoutOnDevices, DropsItsShareAndKeepsTheMean) {
  const Tensor x = at::ones({1000, 1000}, at::TensorOptions(at::kFloat).device(GetParam()));
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor y = dropout(x, p, draws_of(3, 4, GetParam()), 0);
    const double dropped = (y == 0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(dropped, p, 5 * std::sqrt(p * (1 - p) / 1e6));
    EXPECT_TRUE(at::equal(std::get<0>(at::unique_consecutive(y.masked_select(y != 0))).cpu(), at::full({1}, 1 / (1 - p), at::kFloat)));
    // Neither rows nor columns share their draws.
    EXPECT_NEAR((y == 0).to(at::kDouble).mean(0).std().item<double>(), std::sqrt(p * (1 - p) / 1e3), 0.002);
    EXPECT_NEAR((y == 0).to(at::kDouble).mean(1).std().item<double>(), std::sqrt(p * (1 - p) / 1e3), 0.002);
  }
}

TEST_P(DropoutOnDevices, DrawsDependOnSeedStepAndPlaceAlone) {
  const Tensor x = at::ones({100, 64}, at::TensorOptions(at::kFloat).device(GetParam()));
  const auto dropped = [&](int64_t seed, int64_t step, int64_t place) { return dropout(x, 0.5, draws_of(seed, step, GetParam()), place); };
  const Tensor y = dropped(1, 2, 3);
  EXPECT_TRUE(same_bits(dropped(1, 2, 3), y));
  EXPECT_TRUE(same_bits(dropout(x * 2, 0.5, draws_of(1, 2, GetParam()), 3), y * 2));
  for (const Tensor& other : {dropped(2, 2, 3), dropped(1, 3, 3), dropped(1, 2, 4), dropped(2, 1, 3), dropped(1, 3, 2), dropped(3, 2, 1)})
    EXPECT_NEAR((other == y).to(at::kDouble).mean().item<double>(), 0.5, 0.04);
  // The number of the step is read when the draws are made.
  const Draws draws = draws_of(1, 1, GetParam());
  draws.step.add_(1);
  EXPECT_TRUE(same_bits(dropout(x, 0.5, draws, 3), y));
}

// A part of a batch with the number of tokens before it.
TEST_P(DropoutOnDevices, PartsOfABatchDrawAsTheWhole) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Tensor x = random({12, 5, 3}, type).to(GetParam()), table = random({9, 16}, type).to(GetParam());
    const Tensor ids = (at::arange(12, at::kLong) * 5 % 9).to(GetParam());
    Draws draws = draws_of(7, 2, GetParam());
    const Tensor whole = dropout(x, 0.4, draws, 3), rows = tied_embedding(table, ids, 0.4, draws, 1).rows;
    for (const int64_t first : {1, 4, 11}) {
      draws.first_token = first;
      const Tensor part = x.slice(0, first).clone().requires_grad_(), own_table = table.clone().requires_grad_();
      const Tensor kept = dropout(part, 0.4, draws, 3), own_rows = tied_embedding(own_table, ids.slice(0, first), 0.4, draws, 1).rows;
      EXPECT_TRUE(same_bits(kept, whole.slice(0, first))) << type << ' ' << first;
      EXPECT_TRUE(same_bits(own_rows, rows.slice(0, first))) << type << ' ' << first;
      // The gradients drop the same elements.
      const Tensor gradient = torch::autograd::grad({kept.sum()}, {part})[0];
      EXPECT_TRUE(same_bits(gradient, dropout(at::ones_like(x), 0.4, draws_of(7, 2, GetParam()), 3).slice(0, first))) << type;
      const Tensor factors = dropout(at::ones_like(rows), 0.4, draws_of(7, 2, GetParam()), 1).slice(0, first).to(at::kDouble);
      const Tensor expected = at::zeros({9, 16}, factors.options()).index_add_(0, ids.slice(0, first), factors);
      const Tensor of_table = torch::autograd::grad({own_rows.sum()}, {own_table})[0].to(at::kDouble);
      EXPECT_LT((of_table - expected).abs().max().item<double>(), type == at::kBFloat16 ? 0.05 : 1e-5) << type << ' ' << first;
    }
  }
}

// Not even moved against each other: a draw is a function of the seed, the step and the place, mixed one after the other.
TEST_P(DropoutOnDevices, NeighbouringDrawsAreNotShifted) {
  constexpr int64_t kCount = 20000, kFarthest = 40;
  const Tensor x = at::ones({kCount}, at::TensorOptions(at::kFloat).device(GetParam()));
  const auto kept = [&](int64_t seed, int64_t step, int64_t place) {
    return dropout(x, 0.5, draws_of(seed, step, GetParam()), place).cpu() > 0;
  };
  const Tensor one = kept(7, 5, 1);
  for (const auto& [seed, step, place] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{8, 5, 1},
                                                                                            {6, 5, 1},
                                                                                            {7, 6, 1},
                                                                                            {7, 4, 1},
                                                                                            {7, 5, 2},
                                                                                            {7, 5, 0},
                                                                                            {8, 4, 1},
                                                                                            {7, 6, 0},
                                                                                            {7 + (int64_t{1} << 32), 5, 1},
                                                                                            {-7, 5, 1}}) {
    const Tensor other = kept(seed, step, place);
    for (int64_t shift = -kFarthest; shift <= kFarthest; ++shift) {
      const Tensor a = one.narrow(0, std::max<int64_t>(0, shift), kCount - std::abs(shift)),
                   b = other.narrow(0, std::max<int64_t>(0, -shift), kCount - std::abs(shift));
      EXPECT_NEAR((a == b).to(at::kDouble).mean().item<double>(), 0.5, 0.02)
          << seed << ", " << step << ", " << place << ", shift " << shift;
    }
  }
}

// A chance next to 1 has a finite scale, and nothing but the draws decides who is kept.
TEST_P(DropoutOnDevices, OfTheGreatestChanceIsFinite) {
  const double p = std::nextafter(1.0, 0.0);
  const Tensor y = dropout(at::ones({1 << 20}, at::TensorOptions(at::kFloat).device(GetParam())), p, draws_of(3, 4, GetParam()), 0);
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  EXPECT_LE((y != 0).sum().item<int64_t>(), 2);
}

TEST_P(DropoutOnDevices, TheGradientDropsTheSameElements) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Draws draws = draws_of(1, 2, GetParam());
    const Tensor x = random({33, 48}, type).to(GetParam()).requires_grad_(), cotangent = random({33, 48}, type).to(GetParam());
    const Tensor gradient = torch::autograd::grad({dropout(x, 0.25, draws, 9)}, {x}, {cotangent})[0];
    EXPECT_TRUE(same_bits(gradient, dropout(cotangent, 0.25, draws, 9))) << type;
  }
  EXPECT_TRUE(gradcheck([](const std::vector<Tensor>& t) { return std::vector<Tensor>{dropout(t[0], 0.4, draws_of(1, 2, at::kCPU), 0)}; },
                        {random({5, 7})}));
}

TEST(Dropout, WithoutAChanceIsTheInputItself) {
  const Tensor x = random({3, 4});
  EXPECT_TRUE(dropout(x, 0, {}, 0).is_same(x));
}

TEST(Dropout, ErrorsSayWhatToDo) {
  const Tensor x = at::zeros({3, 4});
  EXPECT_EQ(error_of([&] { dropout(x, 0.1, {}, 0); }),
            "dropout: p > 0 needs the number of the step that it draws for: give draws.step, int64 [], where x is");
  const Draws draws = draws_of(0, 0, at::kCPU);
  EXPECT_EQ(error_of([&] { dropout(x, 1, draws, 0); }), "dropout: p must be at least 0 and below 1, got 1");
  EXPECT_EQ(error_of([&] { dropout(x, 0.1, {0, at::zeros({1}, at::kLong)}, 0); }), "dropout: step must have shape [], got [1]");
  EXPECT_EQ(error_of([&] { dropout(x, 0.1, {0, at::zeros({})}, 0); }), "dropout: step must be Long, got Float");
}

std::vector<SchemaCase> schema_cases() {
  return {{"dropout", {small_random({5, 6}), 0.25, int64_t{7}, torch::tensor(3, at::kLong), int64_t{2}, int64_t{4}}}};
}

const DefineSchemaCases kSchemaCases("dropout", schema_cases);

}  // namespace dropout_test
}  // namespace based::ops
