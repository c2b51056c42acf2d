#include "based/core/descriptors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <thread>

namespace based {
namespace descriptors_test {

TEST(DescriptorsDeathTest, ThoseThatWereClosedExistAfterwardsAndStillFail) {
  EXPECT_EXIT(
      {
        for (const int number : {0, 1, 2}) close(number);
        open_standard_descriptors();
        char byte = 0;
        const bool right = open("/dev/null", O_RDONLY) > 2 && read(0, &byte, 1) < 0 && write_all(1, "x") == EBADF && write_all(2, "x") == 0;
        _exit(right ? 7 : 8);
      },
      testing::ExitedWithCode(7), "");
}

TEST(Descriptors, WriteAllWritesMoreThanAPipeHoldsAlsoWhereItDoesNotBlock) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  fcntl(ends[1], F_SETFL, O_NONBLOCK);
  const std::string text(1 << 20, 'a');
  std::string got;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) got.append(buffer, static_cast<size_t>(n));
  });
  EXPECT_EQ(write_all(ends[1], text), 0);
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_EQ(got, text);
}

TEST(Descriptors, WriteAllSaysWhatWentWrong) {
  const int full = open("/dev/full", O_WRONLY);
  EXPECT_EQ(write_all(full, "x"), ENOSPC);
  EXPECT_EQ(write_all(full, ""), 0);
  close(full);
}

}  // namespace descriptors_test
}  // namespace based
