#include "based/core/interrupt.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <csignal>

namespace based {
namespace interrupt_test {

TEST(Interrupt, TheFirstSignalSetsAFlag) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const InterruptScope scope;
    EXPECT_FALSE(interrupted());
    std::raise(signal);
    EXPECT_TRUE(interrupted());
    EXPECT_EQ(interrupt_signal(), signal);
  }
  const InterruptScope fresh;
  EXPECT_FALSE(interrupted()) << "a new outermost scope starts clean";
}

TEST(Interrupt, NestedScopesShareTheFlag) {
  const InterruptScope outer;
  std::raise(SIGINT);
  {
    const InterruptScope inner;
    EXPECT_TRUE(interrupted());
  }
  EXPECT_TRUE(interrupted());
}

TEST(Interrupt, ATimeLimitEndsWithItsScope) {
  {
    const InterruptScope scope;
    interrupt_after(1e6);
    EXPECT_FALSE(interrupted());
    interrupt_after(0);
    EXPECT_TRUE(interrupted());
    EXPECT_EQ(interrupt_signal(), 0) << "no signal";
  }
  EXPECT_FALSE(interrupted());
}

TEST(InterruptDeathTest, TheSecondSignalExitsWith130) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        std::raise(SIGTERM);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

// Both the shell and the terminal send SIGHUP; a service manager sends it after SIGTERM.
TEST(InterruptDeathTest, AHangUpIsNoSecondSignal) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        for (const int signal : {SIGHUP, SIGHUP, SIGHUP}) std::raise(signal);
        _exit(interrupt_signal() == SIGHUP ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}

TEST(InterruptDeathTest, ASignalThatWasIgnoredStaysIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGINT, SIG_IGN);
        {
          const InterruptScope scope;
          std::raise(SIGINT);
          if (interrupted()) _exit(8);
        }
        std::raise(SIGINT);
        _exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(InterruptDeathTest, OutsideOfAScopeSignalsActAsBefore) {
  EXPECT_EXIT(
      {
        { const InterruptScope scope; }
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace interrupt_test
}  // namespace based
