#include "based/kernels/common/cpu/isa.h"

#include <gtest/gtest.h>

#include <string>

namespace based::kernels::cpu {
namespace isa_test {

constexpr Isa every_isa[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512bf16};

TEST(Isa, StartsAtTheBestThatTheMachineRuns) { EXPECT_EQ(isa(), best_isa()); }

TEST(Isa, ChangesToWhatTheMachineRunsAndRefusesTheRest) {
  for (Isa wanted : every_isa) {
    const Isa before = isa();
    EXPECT_EQ(set_isa(wanted), wanted <= best_isa()) << isa_name(wanted);
    EXPECT_EQ(isa(), wanted <= best_isa() ? wanted : before) << isa_name(wanted);
  }
  EXPECT_TRUE(set_isa(best_isa()));
}

TEST(Isa, HasANameEach) {
  EXPECT_STREQ(isa_name(Isa::portable), "portable");
  for (Isa one : every_isa)
    for (Isa other : every_isa) EXPECT_EQ(one == other, std::string(isa_name(one)) == isa_name(other));
}

}  // namespace isa_test
}  // namespace based::kernels::cpu
