#include "based/ops/sampling/adjusted_logits.h"

#include "based/ops/sampling/sample.h"
#include "based/ops/sampling/top_tokens.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace adjusted_logits_test {

using namespace testing;

// The inputs of the operator, on one device.
struct AdjustedInputs {
  Tensor logits, presence, frequency, penalty, seen;
  OptionalTensor bias, counts;

  AdjustedLogits struct_of() const { return {logits, presence, frequency, penalty, seen, bias, counts}; }
};

AdjustedInputs random_inputs(int64_t rows, int64_t vocab, at::ScalarType type, at::DeviceType device) {
  const auto each = [&](double low, double high) { return (at::rand({rows}) * (high - low) + low).to(device); };
  return {random({rows, vocab}, type, 3).to(device),
          each(-2, 2),
          each(-2, 2),
          each(0.5, 2),
          at::randint(1 << 30, {rows, kernels::sample_seen_words(vocab)}, at::kInt).to(device),
          random({rows, vocab}, at::kFloat, 5).to(device),
          at::randint(4, {rows, vocab}, at::kInt).to(device)};
}

BASED_ON_EVERY_DEVICE(AdjustedLogitsOnDevices);

TEST_P(AdjustedLogitsOnDevices, AreThoseOfTheFormulaInDoublePrecision) {
  torch::manual_seed(47);
  for (const int64_t vocab : {1, 37, 1000})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const bool with_bias : {false, true})
        for (const bool with_counts : {false, true}) {
          AdjustedInputs in = random_inputs(5, vocab, type, GetParam());
          if (!with_bias) in.bias.reset();
          if (!with_counts) in.counts.reset();
          const Tensor found = adjusted_logits(in.struct_of()), expected = adjusted_logits_reference(in.struct_of());
          ASSERT_EQ(found.scalar_type(), at::kFloat);
          EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-5)) << vocab << ' ' << type << with_bias << with_counts;
        }
}

// By hand: tokens 0 to 5 with logit 4, −4, 4, −4, 4, 4. Tokens 0, 1 and 5 are in the sequence; 2, 3 and 5 have been generated.
TEST_P(AdjustedLogitsOnDevices, AddTheBiasThenPenaliseRepetitionThenSubtractForGeneratedTokens) {
  const auto one = [&](double value) { return at::full({1}, value, at::dtype(at::kFloat).device(GetParam())); };
  const Tensor logits = torch::tensor({{4.F, -4.F, 4.F, -4.F, 4.F, 4.F}}).to(GetParam());
  const Tensor seen = torch::tensor({{1 | 2 | 32}}, at::kInt).to(GetParam());
  const OptionalTensor bias = torch::tensor({{0.F, 6.F, 0.F, 0.F, -INFINITY, -8.F}}).to(GetParam());
  const OptionalTensor counts = torch::tensor({{0, 0, 1, 3, 0, 2}}, at::kInt).to(GetParam());
  const Tensor found = adjusted_logits({logits, one(0.5), one(0.25), one(2), seen, bias, counts});
  EXPECT_TRUE(at::equal(found.cpu(), torch::tensor({{2.F, 1.F, 3.25F, -5.25F, -INFINITY, -9.F}}))) << found;
}

// Columns that are cut off, as the embedding's padding is, leave rows that are further apart than they are long.
TEST_P(AdjustedLogitsOnDevices, ReadRowsThatAreFurtherApart) {
  torch::manual_seed(48);
  AdjustedInputs in = random_inputs(4, 50, at::kFloat, GetParam());
  const Tensor wide = at::cat({in.logits, in.logits}, 1), expected = adjusted_logits(in.struct_of());
  in.logits = wide.narrow(1, 0, 50);
  EXPECT_TRUE(same_bits(adjusted_logits(in.struct_of()), expected));
}

// With any other options, a token whose bias is −inf is never drawn; a row without any other token has no token.
TEST_P(AdjustedLogitsOnDevices, ExcludeTokensFromDraws) {
  torch::manual_seed(49);
  const int64_t rows = 64, vocab = 700;
  AdjustedInputs in = random_inputs(rows, vocab, at::kBFloat16, GetParam());
  const Tensor allowed = at::rand({rows, vocab}) < 0.01;
  allowed.select(1, 3).fill_(true);
  allowed[5].fill_(false);
  in.bias = at::zeros({rows, vocab}).masked_fill(allowed.logical_not(), -INFINITY).to(GetParam());
  const auto all = [&](double value) { return at::full({rows}, value, at::dtype(at::kFloat).device(GetParam())); };
  for (const double temperature : {0.0, 1.0})
    for (const int64_t top_k : {0, 50}) {
      const Tensor numbers = at::arange(rows, at::dtype(at::kLong).device(GetParam())), token = at::full_like(numbers, -2);
      sample_(token, adjusted_logits(in.struct_of()),
              {numbers, numbers, at::full_like(numbers, top_k), all(temperature), all(0.95), all(0.01), all(1), in.seen.clone()});
      const Tensor drawn = token.cpu();
      EXPECT_EQ(drawn[5].item<int64_t>(), -1);
      for (int64_t row = 0; row < rows; ++row) {
        if (row == 5) continue;
        EXPECT_TRUE(allowed[row][drawn[row].item<int64_t>()].item<bool>()) << temperature << ' ' << top_k << ' ' << row;
      }
    }
}

TEST(AdjustedLogits, ErrorsNameOperatorArgumentAndValue) {
  AdjustedInputs in = random_inputs(2, 5, at::kFloat, at::kCPU);
  in.counts = at::zeros({2, 4}, at::kInt);
  EXPECT_EQ(error_of([&] { adjusted_logits(in.struct_of()); }), "adjusted_logits: counts must have shape [2, 5], got [2, 4]");
  in.logits = in.logits.to(at::kDouble);
  EXPECT_EQ(error_of([&] { adjusted_logits(in.struct_of()); }), "adjusted_logits: logits must be Float or BFloat16, got Double");
}

BASED_ON_EVERY_DEVICE(TopTokensOnDevices);

// The margins are exact: the differences of the logits themselves.
TEST_P(TopTokensOnDevices, AreTheLargestLogitsInOrderWithTheirDifferences) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(50);
    const Tensor logits = at::stack({at::randperm(100, at::kLong), at::randperm(100, at::kLong)}).to(type).to(GetParam());
    const Tensor given = torch::tensor({int64_t{7}, int64_t{99}}).to(GetParam());
    for (const int64_t k : {1, 20, 100}) {
      const auto [ids, margins] = top_tokens(logits, given, k);
      const Tensor own = logits.to(at::kDouble).gather(1, given.unsqueeze(1));
      EXPECT_TRUE(at::equal(margins.to(at::kDouble), 99 - at::arange(k, own.options()).unsqueeze(0) - own)) << k;
      EXPECT_TRUE(at::equal(logits.to(at::kDouble).gather(1, ids) - own, margins.to(at::kDouble))) << k;
    }
  }
}

std::vector<SchemaCase> schema_cases() {
  const AdjustedInputs in = random_inputs(5, 7, at::kFloat, at::kCPU);
  return {{"adjusted_logits", {in.logits, in.presence, in.frequency, in.penalty, in.seen, in.bias, in.counts}},
          {"adjusted_logits", {in.logits, in.presence, in.frequency, in.penalty, in.seen, OptionalTensor(), OptionalTensor()}}};
}

Calls calls(at::Device device) {
  const AdjustedInputs in = random_inputs(3, 256, at::kBFloat16, device.type());
  const auto on = [&](const Tensor& tensor) { return tensor.to(device); };
  const Tensor logits = on(in.logits), presence = on(in.presence), frequency = on(in.frequency), penalty = on(in.penalty),
               seen = on(in.seen);
  const OptionalTensor bias = on(*in.bias), counts = on(*in.counts);
  return [=] { return std::vector<Tensor>{adjusted_logits({logits, presence, frequency, penalty, seen, bias, counts})}; };
}

const DefineSchemaCases kSchemaCases("adjusted_logits", schema_cases);
const DefineCalls kCalls("adjusted_logits", calls);

}  // namespace adjusted_logits_test
}  // namespace based::ops
