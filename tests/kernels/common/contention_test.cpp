#include "based/kernels/common/cpu/contention.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

namespace based::kernels::cpu {
namespace contention_test {

TEST(CpuContention, BeginsAfterTwoHighSharesInARow) {
  CpuContention contention;
  for (const double share : {0.0, 0.9, 0.1, 0.9, 0.2}) EXPECT_FALSE(contention.update(share)) << share;
  EXPECT_FALSE(contention.update(0.5));
  EXPECT_TRUE(contention.update(0.5));
}

TEST(CpuContention, EndsAfterTenLowSharesInARow) {
  CpuContention contention;
  for (int i = 0; i < 2; ++i) contention.update(1);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(contention.update(0.01));
  EXPECT_TRUE(contention.update(0.6)) << "the count begins again";
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(contention.update(0.01));
  EXPECT_FALSE(contention.update(0.01));
}

TEST(CpuContention, ThreadsOnOneCoreWaitForIt) {
  if (!nanoseconds_without_core()) GTEST_SKIP() << "/proc/self/task/*/schedstat is not here";
  std::atomic<bool> ends{false};
  const auto work = [&ends] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    std::thread other([&ends] {
      while (!ends) {}
    });
    while (!ends) {}
    other.join();
  };
  const int64_t before = *nanoseconds_without_core();
  std::thread both(work);
  const auto last = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (*nanoseconds_without_core() - before < 10'000'000 && std::chrono::steady_clock::now() < last) std::this_thread::yield();
  EXPECT_GE(*nanoseconds_without_core() - before, 10'000'000);
  ends = true;
  both.join();
}

TEST(CpuContention, AsksBeforeItStartsThreads) {
  EXPECT_TRUE(can_start_threads(0));
  EXPECT_TRUE(can_start_threads(3));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program where it cannot map memory of its own";
#endif
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit none{0, before.rlim_max};  // no more stacks can be mapped
  setrlimit(RLIMIT_AS, &none);
  const bool can = can_start_threads(1000);
  setrlimit(RLIMIT_AS, &before);
  EXPECT_FALSE(can);
}

#ifdef _OPENMP
size_t threads() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(CpuContention, IdleThreadsComeAndGo) {
  const size_t before = threads();
  add_idle_threads(true);
  EXPECT_GT(threads(), std::max<size_t>(before, std::thread::hardware_concurrency()));
  add_idle_threads(false);
  // A thread that was joined may still be listed for a moment.
  for (int tries = 0; tries < 2000 && threads() > 1; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(threads(), 1U) << "the calling thread's own loops have theirs made again";
}
#endif

}  // namespace contention_test
}  // namespace based::kernels::cpu
