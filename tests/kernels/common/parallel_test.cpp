#include "based/kernels/common/cpu/parallel.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

namespace based::kernels::cpu {
namespace parallel_test {

TEST(Parallel, ForCoversTheRangeOnce) {
  for (int64_t n : {0, 1, 2, 7, 1000})
    for (int64_t grain : {0, 1, 3, 2000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (auto& count : seen) EXPECT_EQ(count, 1) << "n " << n << " grain " << grain;
    }
}

TEST(Parallel, ItemsAreEachHandedOutOnceToAThreadBelowTheirNumber) {
  for (int64_t n : {0, 1, 2, 7, 1000}) {
    const int64_t threads = n < max_threads() ? n : max_threads();
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    std::atomic<bool> in_range{true};
    parallel_items(n, [&](int64_t item, int64_t thread) {
      ++seen[static_cast<size_t>(item)];
      if (thread < 0 || thread >= threads) in_range = false;
    });
    EXPECT_TRUE(in_range) << n;
    for (auto& count : seen) EXPECT_EQ(count, 1) << n;
  }
}

TEST(Parallel, RunsInlineInsideAnotherLoop) {
  if (max_threads() < 2) GTEST_SKIP() << "one thread";
  std::atomic<int64_t> calls{0};
  parallel_for(2, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) parallel_for(100, 1, [&](int64_t, int64_t) { ++calls; });
  });
  EXPECT_EQ(calls, 2);
}

#if defined(_OPENMP) && defined(__linux__)
// libgomp ends the threads that a smaller team lacks: loops of few parts between loops of many would start threads anew each time.
TEST(Parallel, LoopsOfAnySizeKeepTheThreads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(4);
  std::mutex mutex;
  std::set<pid_t> threads;
  const auto note = [&] {
    const std::lock_guard lock(mutex);
    threads.insert(gettid());
  };
  for (int i = 0; i < 20; ++i) {
    for (const int64_t n : {4, 2, 3}) {
      parallel_for(n, 1, [&](int64_t, int64_t) { note(); });
      parallel_items(n, [&](int64_t, int64_t) { note(); });
    }
  }
  omp_set_num_threads(before);
  EXPECT_LE(threads.size(), 4U);
}
#endif

}  // namespace parallel_test
}  // namespace based::kernels::cpu
