#include "based/parallel/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "based/parallel/agree.h"
#include "based/parallel/store.h"
#include "tests/core/temporary_folder.h"
#include "tests/parallel/operations.h"

namespace based {
namespace collectives_test {

using Ranks = std::vector<std::shared_ptr<Collectives>>;
using testing::HasSubstr;

void on_each(const Ranks& ranks, const std::function<void(Collectives&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) threads.emplace_back([&body, rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

// The message of the Error that `body` throws on each rank; "" for none.
std::vector<std::string> errors_on_each(const Ranks& ranks, const std::function<void(Collectives&)>& body) {
  std::vector<std::string> messages(ranks.size());
  on_each(ranks, [&](Collectives& rank) { messages[static_cast<size_t>(rank.rank())] = message_of<Error>([&] { body(rank); }); });
  return messages;
}

struct StoreRanks {
  explicit StoreRanks(int64_t world, std::chrono::milliseconds timeout = std::chrono::minutes(1))
      : store(c10::make_intrusive<c10d::HashStore>()) {
    for (int64_t rank = 0; rank < world; ++rank)
      ranks.push_back(make_host_collectives(rank, world, make_store_exchange(store, place(rank, world), timeout, std::chrono::minutes(1))));
  }
  static RankEnvironment place(int64_t rank, int64_t world) {
    RankEnvironment result;
    result.rank = rank, result.world = world, result.address = "node1", result.port = 29500;
    return result;
  }
  c10::intrusive_ptr<c10d::HashStore> store;
  Ranks ranks;
};

TEST(Collectives, OfOneRankCopy) {
  const auto ranks = make_single_rank();
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kLong}) expect_right_operations(*ranks, 5, type);
}

TEST(Collectives, OfThreadsSumInTheOrderOfTheRanks) {
  for (const int64_t world : {1, 2, 3}) {
    on_each(make_thread_ranks(world), [](Collectives& ranks) {
      for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kLong}) expect_right_operations(ranks, 7, type);
    });
  }
}

// A store whose server has ended.
class EndedStore final : public c10d::HashStore {
 public:
  void set(const std::string&, const std::vector<uint8_t>&) override { C10_THROW_ERROR(DistNetworkError, "Connection reset by peer"); }
};

// The rank's Watch ends the process before that.
TEST(Collectives, OverAStoreThatHasEndedNameItAfterAWhile) {
  const auto ranks = make_host_collectives(
      0, 2,
      make_store_exchange(c10::make_intrusive<EndedStore>(), StoreRanks::place(0, 2), std::chrono::minutes(1), std::chrono::minutes(1)));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(message_of<Error>([&] { ranks->barrier(); }),
            "the store of this job at node1:29500 does not answer: rank 0, which serves it, has ended (Connection reset by peer)");
  EXPECT_GE(std::chrono::steady_clock::now() - start, kWatchPatience);
}

TEST(Collectives, OverAStoreSumInTheOrderOfTheRanksAndDeleteTheirKeys) {
  for (const int64_t world : {1, 2, 3}) {
    const StoreRanks job(world);
    on_each(job.ranks, [](Collectives& ranks) {
      for (const auto type : {torch::kFloat, torch::kBFloat16}) expect_right_operations(ranks, 7, type);
    });
    EXPECT_EQ(job.store->getNumKeys(), 0) << world;
  }
}

TEST(Collectives, OverAStoreAValueMayNeedSeveralParts) {
  const StoreRanks job(2);
  const int64_t count = (5 << 20) / 4;  // 5 MiB, in parts of 4 MiB
  on_each(job.ranks, [count](Collectives& ranks) {
    const Tensor values = values_of(ranks.rank(), count, torch::kFloat);
    ranks.all_reduce(values)->wait();
    EXPECT_TRUE(at::equal(values, expected_sum(2, count, torch::kFloat)));
  });
  EXPECT_EQ(job.store->getNumKeys(), 0);
}

TEST(Collectives, MayBePendingTogetherAndEndInAnyOrder) {
  for (const Ranks& ranks : {make_thread_ranks(2), StoreRanks(2).ranks}) {
    on_each(ranks, [](Collectives& rank) {
      const Tensor first = values_of(rank.rank(), 3, torch::kFloat), second = values_of(rank.rank() + 10, 4, torch::kFloat);
      const auto pending_first = rank.all_reduce(first);
      const auto pending_second = rank.broadcast(second, 1);
      if (rank.rank() == 0) pending_first->wait();
      pending_second->wait();
      pending_first->wait();  // a second wait() has no effect
      EXPECT_TRUE(at::equal(first, expected_sum(2, 3, torch::kFloat)));
      EXPECT_TRUE(at::equal(second, values_of(11, 4, torch::kFloat)));
    });
  }
}

TEST(Collectives, ThatDifferBetweenRanksAreAnError) {
  const auto messages = errors_on_each(make_thread_ranks(2), [](Collectives& rank) {
    const Tensor values = at::zeros({rank.rank() == 0 ? 4 : 3});
    rank.all_reduce(values)->wait();
  });
  EXPECT_THAT(messages[0], HasSubstr("operation 0 of rank 1 is all_reduce of 3 x Float, of rank 0 all_reduce of 4 x Float"));
  EXPECT_THAT(messages[1], HasSubstr("operation 0 of rank 0 is all_reduce of 4 x Float, of rank 1 all_reduce of 3 x Float"));
}

TEST(Collectives, NameTheRanksThatDoNotTakePart) {
  const StoreRanks job(3, std::chrono::milliseconds(50));
  const auto messages = errors_on_each({job.ranks[0]}, [](Collectives& rank) { rank.all_reduce(at::zeros({1}))->wait(); });
  EXPECT_THAT(messages[0], HasSubstr("rank 1, rank 2 did not take part in operation 0"));
}

TEST(Agree, NamesTheOddRanksOnAllRanks) {
  const auto compare = [](const std::vector<std::string>& values) {
    return errors_on_each(make_thread_ranks(static_cast<int64_t>(values.size())),
                          [&](Collectives& rank) { agree(rank, "the data", values[static_cast<size_t>(rank.rank())]); });
  };
  EXPECT_THAT(compare({"a", "a", "a"}), testing::Each(""));
  EXPECT_THAT(compare({"b", "a", "a"}), testing::Each("the ranks differ in the data: rank 0 has 'b', the others have 'a'"));
  EXPECT_THAT(compare({"a", "a", "c", "a", "b"}),
              testing::Each("the ranks differ in the data: rank 2 has 'c', rank 4 has 'b', the others have 'a'"));
  EXPECT_THAT(compare({"a", "b"}), testing::Each("the ranks differ in the data: rank 1 has 'b', the others have 'a'"));
}

}  // namespace collectives_test
}  // namespace based
