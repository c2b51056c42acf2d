#include "theory/p_hot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/error.h"

namespace based::theory {
namespace p_hot_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(PHot, WritesDigitsAsOneHotBlocks) {
  EXPECT_THAT(p_hot(9, 2).encode(5), ElementsAre(0, 1, 0, 0, 0, 1));  // 5 = 12 in base 3
  EXPECT_THAT(p_hot(9, 2, true).encode(5), ElementsAre(0, 1, 0, 0));
}

TEST(PHot, RefusesTokensThatAreNoPower) {
  EXPECT_THAT([] { p_hot(10, 2); }, ThrowsMessage<UsageError>(HasSubstr("10 tokens are no power with exponent 2")));
  EXPECT_THAT([] { p_hot(1, 1); }, ThrowsMessage<UsageError>(HasSubstr("base of at least 2")));
  EXPECT_THAT([] { p_hot(0, 1); }, ThrowsMessage<UsageError>(HasSubstr("0 tokens")));
  EXPECT_THAT([] { p_hot(4, 0); }, ThrowsMessage<UsageError>(HasSubstr("blocks must be at least 1")));
  EXPECT_THAT([] { p_hot(4, 100); }, ThrowsMessage<UsageError>(HasSubstr("exponent 100")));
}

TEST(PHot, DecodesNoRowThatIsNoEncoding) {
  const PHot two_hot = p_hot(9, 2);
  EXPECT_EQ(two_hot.decode(std::vector<int64_t>{0, 1, 0, 0, 0, 1}), 5);
  EXPECT_EQ(two_hot.decode(std::vector<int64_t>{0, 1, 0, 0, 0, 0}), std::nullopt);  // a block without a 1
  EXPECT_EQ(two_hot.decode(std::vector<int64_t>{1, 1, 0, 0, 0, 1}), std::nullopt);
  EXPECT_EQ(two_hot.decode(std::vector<int64_t>{0, 2, 0, 0, 0, 1}), std::nullopt);
  EXPECT_EQ(two_hot.decode(std::vector<int64_t>{0, 1, 0}), std::nullopt);
}

}  // namespace p_hot_test
}  // namespace based::theory
