#include "based/models/failure.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace based {
namespace {

using ::testing::StartsWith;

std::string line_of(const std::string& text) { return failure_line(c10::Error({__func__, __FILE__, 1}, text)); }

TEST(FailureLine, SaysHowMuchMemoryWasAskedFor) {
  EXPECT_THAT(line_of("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes. Error code 12"),
              StartsWith("out of memory: 17179869184 bytes were asked for at once; "));
  EXPECT_THAT(line_of("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB"),
              StartsWith("out of memory: 20.00 GiB were asked for at once; "));
  for (const char* other :
       {"index out of range", "tried to allocate", "tried to allocate much", "tried to allocate 12", "tried to allocate 12 "})
    EXPECT_THAT(line_of(other), StartsWith(other));
}

TEST(FailureLine, ReadsTextOfAnyLength) {
  const std::string digits(1'000'000, '7');
  EXPECT_THAT(line_of("tried to allocate " + digits + " bytes"), StartsWith("out of memory: 7777"));
  EXPECT_THAT(line_of("tried to allocate " + digits), StartsWith("tried to allocate 7777"));
}

}  // namespace
}  // namespace based
