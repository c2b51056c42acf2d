#include "based/core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace log_test {

using testing::HasSubstr;
using testing::MatchesRegex;

TEST(Log, MessagesAreCopiedToAFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log");
  write_file_atomic(path, "before\n");
  copy_log_to(path);
  testing::internal::CaptureStderr();
  log_warning("disk full");
  copy_to_log("based: the end");
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, MatchesRegex("..:..:.. warning: disk full\n"));
  EXPECT_EQ(read_file(path), "before\n" + printed + "based: the end\n");
  EXPECT_THAT(message_of<Error>([&] { copy_log_to(folder.file("none/log")); }), HasSubstr("none/log: cannot be written"));
}

}  // namespace log_test
}  // namespace based
