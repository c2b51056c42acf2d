// The slices AR and Other: the rule, by hand and against a direct implementation, and the counts of training pairs.
#include "based/data/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "tests/core/temporary_folder.h"

namespace based {
namespace slices_test {

using ::testing::ElementsAre;

// A window of n + 1 tokens as pairs.
struct Window {
  std::vector<int32_t> tokens;
  std::vector<int64_t> context_starts = {};

  TokenPairs pairs() const { return {std::span(tokens).first(tokens.size() - 1), std::span(tokens).subspan(1), context_starts}; }
};

Slices collected(const std::vector<Window>& windows) {
  Slices slices;
  for (const Window& window : windows) slices.collect(window.pairs());
  return slices;
}

std::vector<int32_t> random_tokens(int64_t count, int32_t vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
  return tokens;
}

TokenDataset set_in_memory(std::vector<int32_t> tokens) { return {"tokens", std::move(tokens), {0}, ByteTokenizer()}; }

TEST(Slices, TheSecondOccurrenceOfAPairInAContextHasItsTrainingCount) {
  const Window window{{5, 6, 5, 6, 7, 5, 6}};
  Slices slices = collected({window});
  EXPECT_EQ(slices.pairs(), 1);  // (5, 6); all others occur once
  slices.count(std::vector<int32_t>{5, 6, 6, 5, 6, 5});
  EXPECT_EQ(slices.training_tokens(), 6);
  EXPECT_THAT(slices.training_counts(window.pairs()), ElementsAre(kNewPair, kNewPair, 2, kNewPair, kNewPair, 2));
}

TEST(Slices, OccurrencesMayOverlap) {
  const Window window{{9, 9, 9, 9, 8}};
  EXPECT_THAT(collected({window}).training_counts(window.pairs()), ElementsAre(kNewPair, 0, 0, kNewPair));
  Slices slices = collected({window});
  slices.count(std::vector<int32_t>{9, 9, 9, 9});
  EXPECT_THAT(slices.training_counts(window.pairs()), ElementsAre(kNewPair, 3, 3, kNewPair));
}

TEST(Slices, PairsOfAnotherContextDoNotCount) {
  const std::vector<int32_t> tokens{1, 2, 1, 2, 1, 2, 1, 2};
  const Window whole{tokens}, parts{tokens, {0, 4}}, unstated{tokens, {4}};
  EXPECT_THAT(collected({whole}).training_counts(whole.pairs()), ElementsAre(kNewPair, kNewPair, 0, 0, 0, 0, 0));
  for (const Window& window : {parts, unstated})
    EXPECT_THAT(collected({window}).training_counts(window.pairs()), ElementsAre(kNewPair, kNewPair, 0, 0, kNewPair, kNewPair, 0));
  const Window first{{1, 2, 3}}, second{{1, 2, 4}};
  EXPECT_EQ(collected({first, second}).pairs(), 0);
}

TEST(Slices, APositionWithoutANextTokenHasNoPair) {
  const std::vector<int32_t> tokens{1, 2, 1, 2}, next{2, kNoLabel, 2, 1};
  const TokenPairs pairs{tokens, next, {}};
  Slices slices;
  slices.collect(pairs);
  EXPECT_THAT(slices.training_counts(pairs), ElementsAre(kNewPair, kNewPair, 0, kNewPair));
}

TEST(Slices, TheThresholdIsTheLargestCountOfAnArToken) {
  const Window window{{1, 2, 1, 2, 3, 4, 3, 4}};
  Slices slices = collected({window});
  slices.add_count(1, 2, 1250);
  slices.add_count(3, 4, 1251);
  slices.add_count(2, 1, 7);  // not asked for
  SliceFigures figures;
  EXPECT_EQ(figures.threshold, 1250);
  const std::vector<float> nats{1, 1, 0.5, 1, 1, 1, 4};
  const std::vector<int32_t> labels{2, 1, 2, kNoLabel, 4, 3, 4};
  figures.add(nats, slices.training_counts(window.pairs()), labels);
  EXPECT_EQ(figures.all.tokens, 6);
  EXPECT_EQ(figures.ar.tokens, 1);
  EXPECT_EQ(figures.ar.nats, 0.5);
  EXPECT_EQ(figures.other.nats, 8);
  EXPECT_DOUBLE_EQ(*figures.ar_share(), 1.0 / 6);
  EXPECT_DOUBLE_EQ(*figures.other.perplexity(), std::exp(8.0 / 5));
  EXPECT_FALSE(figures.is_ar(kNewPair));
  EXPECT_TRUE(figures.is_ar(0));

  SliceFigures sum = figures;
  sum += figures;
  EXPECT_EQ(sum.all.tokens, 12);
  EXPECT_EQ(sum.ar.nats, 1);
  EXPECT_EQ(sum.other.tokens, 10);
}

TEST(Slices, OfNoTokensHaveNoPerplexityAndNoShare) {
  const SliceFigures figures;
  EXPECT_FALSE(figures.all.perplexity());
  EXPECT_FALSE(figures.ar_share());
}

TEST(Slices, CountsHave64Bits) {
  const Window window{{2, 3, 2, 3}};
  Slices slices = collected({window});
  for (int i = 0; i < 2; ++i) slices.add_count(2, 3, 4'000'000'000);
  EXPECT_EQ(slices.training_counts(window.pairs())[2], 8'000'000'000);
}

// Documents 1 2 | 1 | 2 1, with a shard for each of them: the pairs (2, 1) and (1, 2) in the middle span two documents and two shards.
TEST(Slices, PairsSpanDocumentsAndShardsButNotSets) {
  const TemporaryFolder folder;
  ShardWriter writer(folder.file("set"), ByteTokenizer(), 1);
  for (const std::vector<int32_t>& document : {std::vector<int32_t>{1, 2}, {1}, {2, 1}}) writer.add_document(document);
  writer.finish();
  ASSERT_EQ(writer.shards(), 3);
  const TokenDataset train(folder.file("set"));
  const Window window{{1, 2, 1, 2, 1}};
  Slices slices = collected({window});
  EXPECT_TRUE(slices.count(train));
  EXPECT_THAT(slices.training_counts(window.pairs()), ElementsAre(kNewPair, kNewPair, 2, 2));  // in 1 2 1 2 1
  EXPECT_EQ(slices.training_tokens(), 5);
  EXPECT_TRUE(slices.count(set_in_memory({2, 1})));
  EXPECT_THAT(slices.training_counts(window.pairs()), ElementsAre(kNewPair, kNewPair, 2, 3));  // 1 | 2 is no pair
  EXPECT_EQ(slices.training_tokens(), 7);
}

// count() reads the set in several pieces.
TEST(Slices, AgreeWithADirectImplementation) {
  const std::vector<int32_t> train = random_tokens(200'000, 25, 1);
  std::map<std::pair<int32_t, int32_t>, int64_t> counts;
  for (size_t i = 1; i < train.size(); ++i) ++counts[{train[i - 1], train[i]}];
  std::vector<Window> windows;
  for (unsigned i = 0; i < 20; ++i) windows.push_back({random_tokens(101, 15, 10 + i), {0, 30, 31, 70}});
  Slices slices = collected(windows);
  ASSERT_TRUE(slices.count(set_in_memory(train)));
  EXPECT_EQ(slices.training_tokens(), 200'000);
  int64_t recurring = 0;
  for (const Window& window : windows) {
    const std::vector<int64_t> got = slices.training_counts(window.pairs());
    std::set<std::pair<int32_t, int32_t>> seen;
    for (size_t i = 0; i < 100; ++i) {
      if (i == 30 || i == 31 || i == 70) seen.clear();
      const std::pair pair{window.tokens[i], window.tokens[i + 1]};
      const bool is_new = seen.insert(pair).second;
      ASSERT_EQ(got[i], is_new ? kNewPair : counts[pair]) << i;
      recurring += !is_new;
    }
  }
  EXPECT_GT(recurring, 20);
}

TEST(Slices, CountingStopsWhereItIsToldTo) {
  Slices slices;
  int64_t done = 0;
  EXPECT_FALSE(slices.count(set_in_memory(random_tokens(200'000, 25, 1)), [&](int64_t tokens) {
    done = tokens;
    return false;
  }));
  EXPECT_GT(done, 0);
  EXPECT_LT(done, 200'000);
  EXPECT_EQ(slices.training_tokens(), done);
}

TEST(Slices, TheContextsOfABatchAreItsRowsOrItsDocuments) {
  const auto data = std::make_shared<const TokenDataset>("tokens", std::vector<int32_t>{1, 2, 1, 2, 1, 2, 1, 2, 9},
                                                         std::vector<uint64_t>{0, 2, 6}, ByteTokenizer());
  const auto counts = [&](bool documents) {
    const TokenBatch batch = Loader(data, {.length = 4, .batch = 2, .shuffle = false, .documents = documents}).batch_at({});
    Slices slices;
    slices.collect(token_pairs(batch));
    return slices.training_counts(token_pairs(batch));
  };
  EXPECT_THAT(counts(false), ElementsAre(kNewPair, kNewPair, 0, 0, kNewPair, kNewPair, 0, kNewPair));
  // Documents 1 2 | 1 2 1 2 | 1 2 9: rows 1 2 | 1 2 and 1 2 | 1 2.
  EXPECT_THAT(counts(true), ElementsAre(kNewPair, kNewPair, kNewPair, kNewPair, kNewPair, kNewPair, kNewPair, kNewPair));
}

TEST(PairTable, KeepsEveryPair) {
  PairTable table;
  std::map<uint64_t, int64_t> wanted;
  std::mt19937_64 random(3);
  for (int i = 0; i < 5000; ++i) {
    const uint64_t pair = (random() % 70) << 32 | random() % 70;  // many come again
    EXPECT_EQ(table.find(pair) == nullptr, !wanted.contains(pair));
    ++table.insert(pair, 0);
    ++wanted[pair];
  }
  EXPECT_EQ(table.size(), static_cast<int64_t>(wanted.size()));
  for (const auto& [pair, count] : wanted) {
    ASSERT_NE(table.find(pair), nullptr);
    EXPECT_EQ(*table.find(pair), count);
  }
}

}  // namespace slices_test
}  // namespace based
