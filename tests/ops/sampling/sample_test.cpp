#include "based/ops/sampling/sample.h"

#include <set>

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace sample_test {

using namespace testing;

struct Choice {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0, penalty = 1;
};

SampleOptions options(int64_t rows, int64_t vocab, const Choice& choice, at::DeviceType device = at::kCPU) {
  const auto ids = at::dtype(at::kLong).device(device), reals = at::dtype(at::kFloat).device(device);
  return {at::arange(rows, ids),
          at::full({rows}, 42, ids),
          at::full({rows}, choice.top_k, ids),
          at::full({rows}, choice.temperature, reals),
          at::full({rows}, choice.top_p, reals),
          at::full({rows}, choice.min_p, reals),
          at::full({rows}, choice.penalty, reals),
          at::zeros({rows, kernels::sample_seen_words(vocab)}, ids.dtype(at::kInt))};
}

Tensor drawn(const Tensor& logits, const SampleOptions& options) {
  const Tensor token = at::full({logits.size(0)}, -2, options.position.options());
  sample_(token, logits, options);
  return token;
}

// How often each word of these logits is drawn, in `draws` rows that differ in their positions.
Tensor frequencies(const Tensor& logits, const Choice& choice, at::DeviceType device, int64_t draws = 20000) {
  const Tensor rows = logits.to(at::kFloat).to(device).expand({draws, -1});
  return at::bincount(drawn(rows, options(draws, logits.size(0), choice, device)).cpu(), {}, logits.size(0)).to(at::kDouble) /
         static_cast<double>(draws);
}

BASED_ON_EVERY_DEVICE(Sample);

TEST_P(Sample, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const Tensor logits = torch::tensor({0.3, -1.0, 2.0, 1.1, -4.0, 0.0}, at::kDouble);
  for (const double temperature : {1.0, 0.5, 2.0}) {
    const Tensor expected = (logits / temperature).softmax(0), found = frequencies(logits, {temperature}, GetParam());
    // Four standard deviations of a count.
    const Tensor allowed = 4 * (expected * (1 - expected) / 20000).sqrt() + 1e-4;
    EXPECT_TRUE(((found - expected).abs() <= allowed).all().item<bool>()) << found << expected;
  }
}

// Many words and draws would show a random number that is infinite.
TEST_P(Sample, TakesTheMostLikelyOfManyWordsAtALowTemperature) {
  torch::manual_seed(42);
  const Tensor logits = random({1, 50257}, at::kFloat, 4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor rows = logits.to(type).to(GetParam()).expand({512, -1}), best = rows.narrow(0, 0, 1).to(at::kFloat).argmax(1);
    EXPECT_TRUE((drawn(rows, options(512, 50257, {1e-5}, GetParam())) == best).all().item<bool>());
  }
}

TEST_P(Sample, KeepsWhatTheOptionsKeep) {
  const Tensor logits = torch::tensor({0.5, 0.3, 0.1, 0.06, 0.04}, at::kDouble).log();
  const auto kept = [&](const Choice& choice) {
    std::set<int64_t> words;
    const Tensor found = frequencies(logits, choice, GetParam(), 4000);
    for (int64_t word = 0; word < found.size(0); ++word)
      if (found[word].item<double>() > 0) words.insert(word);
    return words;
  };
  EXPECT_EQ(kept({}), (std::set<int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(kept({0}), (std::set<int64_t>{0}));
  EXPECT_EQ(kept({1, 2}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(kept({1, 0, 0.75}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(kept({1, 0, 0.85}), (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(kept({1, 0, 1, 0.15}), (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(kept({1, 4, 0.75, 0.15}), (std::set<int64_t>{0, 1}));
  // top_p applies to the probabilities that top_k leaves, after the temperature: in another order both sets would be {0, 1}.
  EXPECT_EQ(kept({1, 2, 0.6}), (std::set<int64_t>{0}));
  EXPECT_EQ(kept({2, 0, 0.75}), (std::set<int64_t>{0, 1, 2}));
  // top_p applies to what min_p leaves: in the other order the set would be {0, 1, 2}.
  EXPECT_EQ(kept({1, 0, 0.85, 0.15}), (std::set<int64_t>{0, 1}));
}

TEST_P(Sample, ARowDependsOnSeedAndPositionAlone) {
  torch::manual_seed(41);
  const Tensor logits = random({9, 1000}, at::kFloat, 3).to(GetParam());
  const SampleOptions all = options(9, 1000, {0.9, 50, 0.9, 0.01, 1.3}, GetParam());
  all.seen.copy_(at::randint(1 << 30, all.seen.sizes(), at::kInt));
  const Tensor seen = all.seen.clone();
  const Tensor together = drawn(logits, all);
  for (int64_t row = 0; row < 9; ++row) {
    const auto one = [&](const Tensor& t) { return t.narrow(0, row, 1).clone(); };
    const SampleOptions alone{one(all.position), one(all.seed),  one(all.top_k),   one(all.temperature),
                              one(all.top_p),    one(all.min_p), one(all.penalty), one(seen)};
    EXPECT_TRUE(same_bits(drawn(one(logits), alone), one(together)));
  }
  EXPECT_FALSE(at::equal(drawn(logits, options(9, 1000, {5}, GetParam())), drawn(logits, [&] {
                           SampleOptions other = options(9, 1000, {5}, GetParam());
                           other.seed = other.seed + 1;
                           return other;
                         }())));
}

// Against the same logits penalised in ATen, in both forms of the kernel (a row that fits into shared memory, and one that does not).
TEST_P(Sample, PenalisesSeenTokensAndRemembersTheDrawnOne) {
  torch::manual_seed(45);
  for (const int64_t vocab : {37, 1000, 150000})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensor logits = random({6, vocab}, type, 2), is_seen = at::rand({6, vocab}) < 0.3;
      const Tensor wide = logits.to(at::kFloat), penalised = at::where(is_seen, at::where(wide > 0, wide / 1.5, wide * 1.5), wide);
      for (Choice choice : {Choice{0}, Choice{0.8}, Choice{1, 0, 0.9}, Choice{0.9, 20, 0.95, 0.01}}) {
        const Tensor expected = drawn(penalised.to(GetParam()), options(6, vocab, choice, GetParam()));
        choice.penalty = 1.5;
        const SampleOptions given = options(6, vocab, choice, GetParam());
        Tensor words = at::zeros(given.seen.sizes(), at::kLong), after = is_seen.clone();
        words.scatter_add_(1, at::arange(vocab).div(32, "floor").expand({6, vocab}),
                           is_seen.to(at::kLong) * at::pow(2, at::arange(vocab).remainder(32)));
        given.seen.copy_(words.to(at::kInt));
        const Tensor token = drawn(logits.to(GetParam()), given);
        EXPECT_TRUE(same_bits(token, expected)) << vocab << ' ' << type << ' ' << choice.temperature;
        after.scatter_(1, token.cpu().unsqueeze(1), true);
        const Tensor found = given.seen.cpu().to(at::kLong).bitwise_and(0xffffffff).index_select(1, at::arange(vocab).div(32, "floor"));
        const Tensor bits = found.bitwise_right_shift(at::arange(vocab).remainder(32)).bitwise_and(1) == 1;
        EXPECT_TRUE(at::equal(bits, after)) << vocab;
      }
    }
}

// Each token and its marks are those of a draw of one row, whose marks have the drafts before it.
TEST_P(Sample, DrawsTheTokensOfASequenceAtOnce) {
  torch::manual_seed(46);
  const auto device = GetParam();
  for (const int64_t vocab : {37, 1000, 150000})
    for (const int64_t rows : {1, 3, 8})
      for (const Choice& choice : {Choice{0}, Choice{0.8, 0, 1, 0, 1.4}, Choice{0.9, 20, 0.95, 0.01, 1.2}, Choice{1, 0, 0.9}}) {
        const Tensor logits = random({rows, vocab}, at::kBFloat16, 2).to(device);
        const Tensor drafts = at::randint(vocab, {rows - 1}, at::kLong);
        SampleOptions of_sequence = options(1, vocab, choice, device);
        of_sequence.seen.copy_(at::randint(1 << 30, of_sequence.seen.sizes(), at::kInt));
        const Tensor before = of_sequence.seen.clone(), positions = at::arange(5, 5 + rows).to(device);
        const Tensor tokens = at::full({rows}, -2, positions.options()), after = before.new_full({rows, before.size(1)}, -1);
        of_sequence.position = positions;
        sample_tokens_(tokens, logits, of_sequence, drafts.to(device), after);
        EXPECT_TRUE(at::equal(of_sequence.seen, before));
        Tensor marks = before.cpu().clone();
        for (int64_t row = 0; row < rows; ++row) {
          SampleOptions one = options(1, vocab, choice, device);
          one.position = positions.narrow(0, row, 1);
          one.seen.copy_(marks);
          EXPECT_TRUE(at::equal(drawn(logits.narrow(0, row, 1), one), tokens.narrow(0, row, 1))) << vocab << ' ' << rows << ' ' << row;
          EXPECT_TRUE(at::equal(after.narrow(0, row, 1), one.seen)) << vocab << ' ' << rows << ' ' << row;
          if (row + 1 < rows)
            kernels::sample_set_seen(reinterpret_cast<uint32_t*>(marks.mutable_data_ptr<int32_t>()), drafts[row].item<int64_t>());
        }
      }
}

TEST_P(Sample, TakesTheSmallestOfEqualsAndTellsWhatIsNotFinite) {
  Tensor logits = at::zeros({4, 700});
  logits[0][300] = logits[0][650] = 2;
  logits[1][5] = NAN;
  logits[2][699] = INFINITY;
  logits[3].fill_(-INFINITY);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensor wide = at::cat({logits, at::full({4, 3}, 9)}, 1).to(type).to(GetParam());  // columns that may not be drawn
    const Tensor token = drawn(wide.narrow(1, 0, 700), options(4, 700, {0}, GetParam()));
    EXPECT_TRUE(at::equal(token.cpu(), torch::tensor({300, -1, -1, -1}, at::kLong))) << token;
  }
}

// Vocabularies and rows that do not end with whole vectors of a GPU's loads.
TEST_P(Sample, FindsTheLargestOfTheLastTokens) {
  for (const int64_t vocab : {8, 257, 8195, 8200})
    for (const int64_t stride : {vocab, (vocab + 7) / 8 * 8})
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const int64_t rows = std::min<int64_t>(vocab, 24);
        const Tensor logits = at::zeros({rows, stride}, at::dtype(type).device(GetParam())).narrow(1, 0, vocab);
        logits.narrow(1, vocab - rows, rows).fill_diagonal_(5);
        const Tensor expected = at::arange(vocab - rows, vocab, at::kLong);
        for (const Choice& choice : {Choice{0}, Choice{1, 1}, Choice{0.01, 100}, Choice{0.01}, Choice{0, 0, 1, 0, 1.1}}) {
          const Tensor token = drawn(logits, options(rows, vocab, choice, GetParam())).cpu();
          EXPECT_TRUE(at::equal(token, expected)) << vocab << ' ' << stride << ' ' << choice.temperature << ' ' << choice.top_k << token;
        }
      }
}

TEST(SampleKernels, GiveTheSameTokensOnCpuAndOn_cuda) {
  BASED_NEEDS(at::kCUDA);
  torch::manual_seed(43);
  const Tensor different = random({64, 5003}, at::kFloat, 4), many_equal = (different / 4).round() * 4;
  for (const Tensor& logits : {different, many_equal})
    for (const Choice& choice : {Choice{0}, Choice{1}, Choice{0.7, 40}, Choice{1.3, 0, 0.9}, Choice{1, 0, 1, 0.05},
                                 Choice{0.8, 100, 0.8, 0.02}, Choice{0.8, 100, 0.8, 0.02, 1.2}}) {
      const SampleOptions on_cpu = options(64, 5003, choice), on_gpu = options(64, 5003, choice, at::kCUDA);
      on_cpu.seen.fill_(0x5a5a5a5a), on_gpu.seen.fill_(0x5a5a5a5a);
      const Tensor here = drawn(logits, on_cpu), there = drawn(logits.cuda(), on_gpu).cpu();
      // A sum that lands next to the threshold may fall on either side.
      EXPECT_GE((here == there).sum().item<int64_t>(), 63) << choice.temperature << ' ' << choice.top_k << ' ' << choice.top_p;
    }
}

TEST(SampleKernels, ErrorsNameOperatorArgumentAndValue) {
  SampleOptions wrong = options(2, 5, {});
  wrong.top_p = at::ones({3});
  EXPECT_EQ(error_of([&] { drawn(at::zeros({2, 5}), wrong); }), "sample_: top_p must have shape [2], got [3]");
  EXPECT_EQ(error_of([&] { drawn(at::zeros({2, 5}), options(2, 40, {})); }), "sample_: seen must have shape [2, 1], got [2, 2]");
  EXPECT_EQ(error_of([&] {
              drawn(at::zeros({2, 5}, at::kDouble), options(2, 5, {}));
            }),
            "sample_: logits must be Float or BFloat16, got Double");
}

std::vector<SchemaCase> schema_cases() {
  const SampleOptions o = options(5, 7, {}), one = options(1, 7, {});
  return {{"sample_",
           {at::full({5}, -2, at::kLong), small_random({5, 7}), o.position, o.seed, o.top_k, o.temperature, o.top_p, o.min_p, o.penalty,
            o.seen}},
          {"sample_tokens_",
           {at::full({5}, -2, at::kLong), small_random({5, 7}), o.position, one.seed, one.top_k, one.temperature, one.top_p, one.min_p,
            one.penalty, one.seen, at::arange(4), o.seen}}};
}

Calls calls(at::Device device) {
  const Tensor logits = random({3, 256}, at::kBFloat16).to(device), token = at::zeros({3}, at::dtype(at::kLong).device(device));
  const Tensor numbers = at::arange(3, token.options()), fractions = at::full({3}, 0.9, at::dtype(at::kFloat).device(device));
  const SampleOptions options{
      numbers,   numbers,          numbers + 20,    fractions,
      fractions, fractions * 0.01, fractions + 0.3, at::zeros({3, kernels::sample_seen_words(256)}, fractions.options().dtype(at::kInt))};
  const auto one = [](const Tensor& x) { return x.narrow(0, 0, 1); };
  const SampleOptions of_sequence{numbers,
                                  one(options.seed),
                                  one(options.top_k),
                                  one(options.temperature),
                                  one(options.top_p),
                                  one(options.min_p),
                                  one(options.penalty),
                                  one(options.seen)};
  const Tensor tokens = at::zeros_like(token), after = at::zeros_like(options.seen), drafts = numbers.narrow(0, 0, 2);
  return [=] {
    sample_(token, logits, options);
    sample_tokens_(tokens, logits, of_sequence, drafts, after);
    return std::vector<Tensor>{token.clone(), options.seen.clone(), tokens.clone(), after.clone()};
  };
}

const DefineSchemaCases kSchemaCases("sample", schema_cases);
const DefineCalls kCalls("sample", calls);

}  // namespace sample_test
}  // namespace based::ops
