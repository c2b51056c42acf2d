// The program monitors CPU contention unless the environment sets how OpenMP threads wait.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/apps/program.h"

namespace based {
namespace contention_test {

// The names of the program's threads, once it has more than one.
std::string threads_with(const std::string& environment) {
  const std::string look =
      "for i in $(seq 1000); do [ $(ls /proc/$!/task | wc -l) -gt 1 ] && break; sleep 0.01; done; sleep 0.5; cat /proc/$!/task/*/comm; "
      "kill $!; wait";
  return run("bench mqar >/dev/null & " + look, "unset OMP_WAIT_POLICY GOMP_SPINCOUNT; " + environment).out;
}

TEST(ContentionMonitor, RunsWhereTheEnvironmentDoesNotSayHowThreadsWait) {
  if (!std::filesystem::exists("/proc/self/schedstat")) GTEST_SKIP() << "/proc/self/schedstat is not here";
  EXPECT_THAT(threads_with(""), testing::HasSubstr("cpu contention"));
  for (const char* setting : {"export OMP_WAIT_POLICY=passive; ", "export GOMP_SPINCOUNT=500; ", "ulimit -v 10000000; "}) {
    const std::string threads = threads_with(setting);
    EXPECT_THAT(threads, testing::HasSubstr("based")) << setting;
    EXPECT_THAT(threads, testing::Not(testing::HasSubstr("cpu contention"))) << setting;
  }
}

}  // namespace contention_test
}  // namespace based
