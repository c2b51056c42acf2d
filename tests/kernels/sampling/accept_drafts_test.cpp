// Without torch, so that the sanitizers run it.
#include "based/kernels/sampling/accept_drafts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace based::kernels {
namespace accept_drafts_test {

// Values with 3 bytes after each of the four tokens, and with 8 bytes after each but the last; the accepted drafts.
TEST(AcceptDrafts, TakeTheRowAfterTheLastRightDraft) {
  const std::vector<int64_t> tokens{7, 8, 9, 10};
  const std::vector<char> all{'a', 'a', 'a', 'b', 'b', 'b', 'c', 'c', 'c', 'd', 'd', 'd'};
  const std::vector<int64_t> most{20, 21, 22};
  struct Expected {
    std::vector<int64_t> drafts;
    char byte;
    int64_t number;
  };
  for (const Expected& expected : std::vector<Expected>{
           {{1, 8, 9}, 'a', 20}, {{7, 1, 9}, 'b', 21}, {{7, 8, 1}, 'c', 22}, {{7, 8, 9}, 'd', 23}, {{7}, 'b', 21}, {{}, 'a', 20}}) {
    std::vector<char> bytes(3, 'x');
    int64_t number = 23;
    const std::vector<AcceptedRow> values{{bytes.data(), all.data(), 3, 4}, {&number, most.data(), 8, 3}, {nullptr, nullptr, 0, 4}};
    ASSERT_TRUE(cpu::accept_drafts({tokens.data(), expected.drafts.data(), static_cast<int64_t>(expected.drafts.size()), values.data(),
                                    static_cast<int64_t>(values.size())})
                    .ok());
    EXPECT_EQ(bytes, std::vector<char>(3, expected.byte));
    EXPECT_EQ(number, expected.number);
  }
}

}  // namespace accept_drafts_test
}  // namespace based::kernels
