#include "based/core/new_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "based/core/files.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace new_folder_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MadeFolder, GoesAgainWithThoseAboveItUnlessItIsKept) {
  const TemporaryFolder folder;
  { const MadeFolder made(folder.file("a/b/c/")); }
  EXPECT_FALSE(fs::exists(folder.file("a")));
  {
    MadeFolder made(folder.file("a/b"));
    made.keep();
  }
  EXPECT_TRUE(fs::exists(folder.file("a/b")));
  { const MadeFolder there(folder.file("a/b")); }
  EXPECT_TRUE(fs::exists(folder.file("a/b"))) << "it was there before";
  {
    const MadeFolder filled(folder.file("a/d"));
    write_file_atomic(folder.file("a/d/file"), "x");
  }
  EXPECT_TRUE(fs::exists(folder.file("a/d/file")));
  write_file_atomic(folder.file("file"), "x");
  EXPECT_THAT(message_of<Error>([&] { MadeFolder(folder.file("file/a")); }), HasSubstr("file/a: cannot make the folder"));
  EXPECT_THAT(message_of<Error>([&] { MadeFolder(folder.file("file")); }), HasSubstr("file: cannot make the folder"));
}

TEST(NewFolder, IsThereWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string path = folder.file("above/new");
  const auto write = [](const std::string& into) {
    write_file_atomic(into + "/first", "1");
    write_file_atomic(into + "/second", std::string(4096, '2'));
  };
  std::string message;
  {
    const FileSizeLimit full(1024);
    message = message_of<Error>([&] { NewFolder(path, "--out").fill(write); });
  }
  EXPECT_THAT(message, AllOf(HasSubstr("above/new/second: cannot write: File too large"), Not(HasSubstr(".tmp-"))));
  EXPECT_TRUE(fs::is_empty(folder.path())) << "nothing is left that blocks the next try";
  NewFolder(path + "/", "--out").fill(write);
  EXPECT_EQ(read_file(path + "/first"), "1");
  EXPECT_EQ(read_file(path + "/second").size(), 4096U);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.file("above")), {}), 1);
  EXPECT_THAT(message_of<UsageError>([&] { NewFolder(path, "--out"); }), HasSubstr("above/new: is there already; name a new folder"));
  EXPECT_THAT(message_of<Error>([&] { NewFolder(path + "/first/new", "--out"); }), HasSubstr("above/new/first/new: "));
}

}  // namespace new_folder_test
}  // namespace based
