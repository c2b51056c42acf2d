#include "based/models/failure.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <system_error>

namespace based {
namespace failure_test {

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

TEST(FailureLine, NamesThePathAndTheLimitWhereTheStandardLibraryFails) {
  const auto not_a_folder = std::make_error_code(std::errc::not_a_directory);
  EXPECT_EQ(failure_line(std::filesystem::filesystem_error("cannot create directories", "out/file/below", not_a_folder)),
            "out/file/below: Not a directory");
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_THAT(failure_line(no_thread), StartsWith("a thread cannot be started: address space or processes are limited"));
}

}  // namespace failure_test
}  // namespace based
