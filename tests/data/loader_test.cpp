#include "based/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
