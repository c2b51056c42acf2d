#include "based/core/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace based {
namespace {

TEST(Interrupt, TheFirstSignalSetsAFlag) {
  for (const int signal : {SIGINT, SIGTERM}) {
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

TEST(InterruptDeathTest, TheSecondSignalExitsWith130) {
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        std::raise(SIGTERM);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(130), "");
}

TEST(InterruptDeathTest, OutsideOfAScopeSignalsActAsBefore) {
  EXPECT_EXIT(
      {
        { const InterruptScope scope; }
        std::raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace based
