#include "based/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/core/temporary_folder.h"

namespace based {
namespace loader_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LoaderTest : public ::testing::Test {
 protected:
  // Bytes 0, 1, 2 … in documents of the given lengths, over several shards.
  std::shared_ptr<const TokenDataset> make(const std::vector<int>& documents) {
    ShardWriter writer(folder_.file(std::to_string(sets_)), ByteTokenizer(), 16);
    int32_t next = 0;
    for (const int length : documents) {
      std::vector<int32_t> ids(static_cast<size_t>(length));
      for (int32_t& id : ids) id = next++ % 256;
      writer.add_document(ids);
    }
    writer.finish();
    return std::make_shared<TokenDataset>(folder_.file(std::to_string(sets_++)));
  }
  TemporaryFolder folder_;
  int sets_ = 0;
};

TEST(Permutation, GivesEveryIndexOnce) {
  for (const uint64_t size : {1, 2, 3, 5, 16, 17, 100, 1000, 4097}) {
    for (const uint64_t stream : {0, 1}) {
      const Permutation permutation(size, 42, stream);
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < size; ++i) {
        EXPECT_LT(permutation(i), size);
        seen.insert(permutation(i));
      }
      EXPECT_EQ(seen.size(), size);
    }
  }
  EXPECT_LT(Permutation((uint64_t{1} << 40) + 3, 1, 0)((uint64_t{1} << 40) + 2), (uint64_t{1} << 40) + 3);
}

// Over many streams, the image of the first index is uniformly distributed: a chi-squared test with 9 degrees of freedom.
TEST(Permutation, IsEven) {
  std::vector<double> seen(10, 0);
  for (uint64_t stream = 0; stream < 20000; ++stream) seen[Permutation(10, 7, stream)(0)] += 1;
  double chi_squared = 0;
  for (const double count : seen) chi_squared += (count - 2000) * (count - 2000) / 2000;
  EXPECT_LT(chi_squared, 34);
}

// Epochs are streams. Two unrelated orders agree at one of n places on average, also if one is shifted.
TEST(Permutation, OfNeighbouringSeedsAndEpochsAreUnrelated) {
  constexpr int64_t size = 1000;
  for (int64_t ds = 0; ds <= 2; ++ds)
    for (int64_t de = ds == 0 ? 1 : -2; de <= 2; ++de) {
      const Permutation one(size, 40, 5), other(size, 40 + static_cast<uint64_t>(ds), 5 + static_cast<uint64_t>(de));
      for (int64_t shift = -3; shift <= 3; ++shift) {
        int64_t equal = 0;
        for (int64_t i = 0; i < size; ++i)
          equal += one(static_cast<uint64_t>(i)) == other(static_cast<uint64_t>((i + shift + size) % size));
        EXPECT_LT(equal, 12) << ds << ' ' << de << ' ' << shift;
      }
    }
}

TEST_F(LoaderTest, InOrderTheWindowsAreTheText) {
  Loader loader(make({7, 20, 3, 12}), {.length = 5, .batch = 2, .shuffle = false});
  EXPECT_EQ(loader.windows(), 8);
  const TokenBatch first = loader.next();
  EXPECT_THAT(first.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(first.targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
  EXPECT_THAT(first.cu_seqlens, ElementsAre(0, 5, 10));
  EXPECT_THAT(first.windows, ElementsAre(0, 1));
  EXPECT_THAT(loader.next().windows, ElementsAre(2, 3));
}

TEST_F(LoaderTest, AnEpochGivesEveryWindowOnceAndTheNextInAnotherOrder) {
  Loader loader(make({400}), {.length = 5, .batch = 3, .seed = 9});
  ASSERT_EQ(loader.windows(), 79);
  std::vector<int64_t> order;
  while (order.size() < 3 * 79) {
    const TokenBatch batch = loader.next();
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(batch.tokens[5 * row], batch.windows[row] * 5 % 256);
      order.push_back(batch.windows[row]);
    }
  }
  std::vector<std::vector<int64_t>> epochs;
  for (std::ptrdiff_t epoch = 0; epoch < 3; ++epoch) epochs.emplace_back(order.begin() + 79 * epoch, order.begin() + 79 * (epoch + 1));
  for (const auto& epoch : epochs) EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 79u);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_NE(Loader(make({400}), {.length = 5, .batch = 3, .seed = 10}).next().windows,
            std::vector<int64_t>(order.begin(), order.begin() + 3));
}

TEST_F(LoaderTest, TheOrderDoesNotDependOnTheNumberOfDevices) {
  const auto data = make({500});
  const LoaderConfig config{.length = 4, .batch = 12, .seed = 3};
  Loader alone(data, config);
  for (const int64_t world : {1, 2, 3, 4, 6, 12}) {
    alone.seek({});
    std::vector<Loader> devices;
    for (int64_t rank = 0; rank < world; ++rank) devices.emplace_back(data, config, rank, world);
    for (int step = 0; step < 30; ++step) {
      const TokenBatch whole = alone.next();
      TokenBatch joined;
      for (Loader& device : devices) {
        const TokenBatch part = device.next();
        joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
        joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
      }
      ASSERT_EQ(joined.tokens, whole.tokens);
      ASSERT_EQ(joined.targets, whole.targets);
    }
  }
}

TEST_F(LoaderTest, APositionIsEnoughToGoOn) {
  const auto data = make({100, 200});
  const LoaderConfig config{.length = 7, .batch = 4, .seed = 5, .documents = true};
  Loader whole(data, config);
  for (int step = 0; step < 25; ++step) whole.next();
  Loader resumed(data, config);
  resumed.seek(whole.position());
  for (int step = 0; step < 25; ++step) {
    const TokenBatch a = whole.next(), b = resumed.next();
    ASSERT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.cu_seqlens, b.cu_seqlens);
  }
  EXPECT_DOUBLE_EQ(whole.epoch(), resumed.epoch());
  EXPECT_THAT(message_of<Error>([&] { resumed.seek({.window = -1}); }), HasSubstr("negative"));
}

// Runs that began before there were mixtures continue with the same windows.
TEST_F(LoaderTest, TheOrderOfOneSetIsThePermutationOfItsEpoch) {
  Loader loader(make({400}), {.length = 5, .batch = 4, .seed = 9});
  std::vector<int64_t> order;
  while (order.size() < 160) {
    const TokenBatch batch = loader.next();
    order.insert(order.end(), batch.windows.begin(), batch.windows.end());
  }
  for (size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<int64_t>(Permutation(79, 9, i / 79)(i % 79))) << i;
}

TEST_F(LoaderTest, MixedSetsDeliverEachWindowOnceAnEpoch) {
  const auto first = make({400}), second = make({130}), third = make({61});
  const auto mixture = std::make_shared<TokenMixture>(std::vector<WeightedSet>{{first, 2}, {second, 1}, {third, 1}});
  Loader loader(mixture, {.length = 5, .batch = 8, .seed = 4});
  const std::vector<int64_t> ends = {79, 79 + 25, 79 + 25 + 12};
  ASSERT_EQ(loader.windows(), ends.back());
  std::vector<std::vector<int64_t>> seen(3);
  for (int step = 0; step < 40; ++step) {
    const TokenBatch batch = loader.next();
    for (size_t row = 0; row < 8; ++row) {
      const int64_t window = batch.windows[row];
      const size_t set = window < ends[0] ? 0 : window < ends[1] ? 1 : 2;
      const int64_t within = window - (set == 0 ? 0 : ends[set - 1]);
      seen[set].push_back(within);
      std::vector<int32_t> tokens(5);
      mixture->sets()[set].data->copy(5 * within, tokens);
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), batch.tokens.begin() + static_cast<std::ptrdiff_t>(5 * row)));
    }
  }
  EXPECT_THAT(seen[0].size(), 160u);  // 320 windows by the weights 2 : 1 : 1
  EXPECT_THAT(seen[1].size(), 80u);
  EXPECT_THAT(seen[2].size(), 80u);
  for (size_t set = 0; set < 3; ++set) {
    const int64_t windows = ends[set] - (set == 0 ? 0 : ends[set - 1]);
    for (auto epoch = seen[set].begin(); seen[set].end() - epoch >= windows; epoch += windows)
      EXPECT_EQ(std::set<int64_t>(epoch, epoch + windows).size(), static_cast<size_t>(windows)) << "set " << set;
  }
}

TEST_F(LoaderTest, MixedSetsHaveTheSameOrderOnAnyNumberOfDevices) {
  const auto mixture = std::make_shared<TokenMixture>(std::vector<WeightedSet>{{make({400}), 0.7}, {make({3, 130, 8}), 0.3}});
  const LoaderConfig config{.length = 4, .batch = 8, .seed = 3, .documents = true};
  for (const int64_t world : {2, 4}) {
    Loader alone(mixture, config);
    alone.skip({{9, 30}});
    std::vector<Loader> devices;
    for (int64_t rank = 0; rank < world; ++rank) {
      devices.emplace_back(mixture, config, rank, world);
      devices.back().skip({{9, 30}});
    }
    for (int step = 0; step < 40; ++step) {
      const int64_t labels = alone.step_labels(alone.position());
      const TokenBatch whole = alone.next();
      EXPECT_EQ(labels, std::count_if(whole.targets.begin(), whole.targets.end(), [](int32_t target) { return target != kNoLabel; }));
      std::vector<int64_t> windows;
      std::vector<int32_t> targets;
      for (Loader& device : devices) {
        EXPECT_EQ(device.step_labels(device.position()), labels);
        const TokenBatch part = device.next();
        windows.insert(windows.end(), part.windows.begin(), part.windows.end());
        targets.insert(targets.end(), part.targets.begin(), part.targets.end());
        EXPECT_EQ(device.order_hash(), alone.order_hash());
        EXPECT_EQ(device.position().window, alone.position().window);
      }
      ASSERT_EQ(windows, whole.windows);
      ASSERT_EQ(targets, whole.targets);
    }
  }
}

TEST_F(LoaderTest, StepLabelsAreThoseOfSeveralBatches) {
  Loader loader(make({3, 7, 1, 9, 30, 2, 25}), {.length = 5, .batch = 2, .seed = 1, .documents = true});
  const LoaderPosition start = loader.position();
  int64_t labels = 0;
  for (int batch = 0; batch < 9; ++batch) {
    const TokenBatch next = loader.next();
    labels += std::count_if(next.targets.begin(), next.targets.end(), [](int32_t target) { return target != kNoLabel; });
    EXPECT_EQ(loader.step_labels(start, batch + 1), labels);
  }
  EXPECT_LT(labels, 9 * 10);
  EXPECT_EQ(Loader(make({80}), {.length = 5, .batch = 2}).step_labels({}, 3), 30);
}

TEST_F(LoaderTest, SkippedPlacesAreLeftOutAndLaterWindowsFillTheBatches) {
  const auto data = make({400});
  const LoaderConfig config{.length = 5, .batch = 3, .shuffle = false};
  Loader loader(data, config);
  loader.skip({{20, 22}, {4, 9}, {8, 10}});
  EXPECT_THAT(loader.next().windows, ElementsAre(0, 1, 2));
  EXPECT_THAT(loader.next().windows, ElementsAre(3, 10, 11));
  EXPECT_EQ(loader.position().window, 12);
  EXPECT_THAT(loader.batch_at({.window = 5}).windows, ElementsAre(10, 11, 12));
  EXPECT_THAT(loader.batch_at({.window = 18}).windows, ElementsAre(18, 19, 22));
  // A position means the same place with and without the ranges.
  Loader resumed(data, config);
  resumed.seek(loader.position());
  EXPECT_EQ(resumed.next().windows, loader.next().windows);
  EXPECT_EQ(resumed.order_hash(), loader.order_hash());
  for (const WindowRange& range : {WindowRange{-1, 3}, WindowRange{3, 3}, WindowRange{4, 2}})
    EXPECT_THAT(message_of<UsageError>([&] { loader.skip({range}); }), HasSubstr("must be a range A..B with 0 <= A < B"));
}

TEST_F(LoaderTest, TheHashOfTheOrderIsOfTheWindowsDelivered) {
  const auto data = make({400});
  const LoaderConfig config{.length = 5, .batch = 4, .seed = 2};
  Loader whole(data, config), parts(data, config);
  EXPECT_EQ(whole.order_hash().size(), 16u);
  EXPECT_EQ(whole.order_hash(), parts.order_hash());
  for (int step = 0; step < 25; ++step) {
    const std::string before = whole.order_hash();
    whole.next();
    EXPECT_NE(whole.order_hash(), before);
    Loader resumed(data, config);  // one that continues from a saved position, at each step
    resumed.seek(parts.position());
    resumed.next();
    parts.seek(resumed.position());
    EXPECT_EQ(parts.order_hash(), whole.order_hash());
  }
  parts.seek({.window = whole.position().window});  // from a checkpoint of before there was a hash
  EXPECT_EQ(parts.order_hash(), whole.order_hash());
  LoaderConfig halves = config;  // two batches in place of one
  halves.batch = 2;
  Loader accumulating(data, halves);
  for (int step = 0; step < 50; ++step) accumulating.next();
  EXPECT_EQ(accumulating.order_hash(), whole.order_hash());

  const auto hash_after = [&](const std::shared_ptr<const TokenDataset>& set, const LoaderConfig& other, bool skip) {
    Loader loader(set, other);
    if (skip) loader.skip({{8, 12}});
    for (int step = 0; step < 5; ++step) loader.next();
    return loader.order_hash();
  };
  LoaderConfig seed = config, length = config;
  seed.seed = 3;
  length.length = 6;
  const std::string plain = hash_after(data, config, false);
  EXPECT_NE(plain, hash_after(data, seed, false));
  EXPECT_NE(plain, hash_after(data, length, false));
  EXPECT_NE(plain, hash_after(data, config, true));
  EXPECT_NE(plain, hash_after(make({401}), config, false));
  for (const char* wrong : {"0123", "0123456789abcdeg", "0123456789abcdef0"})
    EXPECT_THAT(message_of<Error>([&] { parts.seek({.window = 4, .order_hash = wrong}); }), HasSubstr("16 hexadecimal digits"));
}

TEST_F(LoaderTest, DocumentsKeepApart) {
  // Documents 0-2, 3-9, 10, 11-19 of bytes 0 … 19.
  Loader loader(make({3, 7, 1, 9}), {.length = 5, .batch = 3, .shuffle = false, .documents = true});
  const TokenBatch batch = loader.next();
  EXPECT_THAT(batch.tokens, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 3, 5, 10, 11, 15));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, kNoLabel, 4, 5, 6, 7, 8, 9, kNoLabel, kNoLabel, 12, 13, 14, 15));
}

TEST_F(LoaderTest, RefusesWhatCannotBe) {
  const auto data = make({20});
  EXPECT_THAT(message_of<Error>([&] { Loader(data, {.length = 20, .batch = 1}); }), HasSubstr("20 tokens: too few for one window of 20"));
  EXPECT_EQ(Loader(data, {.length = 19, .batch = 1}).windows(), 1);
  EXPECT_THAT(message_of<Error>([&] { Loader(data, {.length = 0}); }), HasSubstr("length must be"));
  EXPECT_THAT(message_of<Error>([&] { Loader(data, {.length = 4, .batch = 0}); }), HasSubstr("batch must be"));
  EXPECT_THAT(message_of<Error>([&] { Loader(data, {.length = 4, .batch = 6}, 0, 4); }), HasSubstr("a multiple of the 4 devices"));
}

}  // namespace loader_test
}  // namespace based
