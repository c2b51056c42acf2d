#include "based/core/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace folder_lock_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(FolderLock, OneAtATimeAndTheHolderIsNamed) {
  const TemporaryFolder folder;
  const std::string here = folder.path().string();
  {
    const FolderLock lock(here);
    EXPECT_THAT(message_of<Error>([&] { FolderLock second(here); }),
                HasSubstr(here + ": another run is writing to this folder (process " + std::to_string(getpid()) + ")"));
    EXPECT_EQ(read_file(here + "/.lock"), std::to_string(getpid()) + "\n") << "the second changed nothing";
  }
  const FolderLock again(here);
}

TEST(FileLock, OneAtATimeAndTheHolderIsNamed) {
  const TemporaryFolder folder;
  const std::string file = folder.file("out.jsonl");
  {
    const FileLock lock(file), other(folder.file("other.jsonl"));
    EXPECT_EQ(message_of<Error>([&] { FileLock second(file); }),
              file + ": another run is writing to this file (process " + std::to_string(getpid()) + "); wait for it, or name another file");
    EXPECT_EQ(read_file(file + ".lock"), std::to_string(getpid()) + "\n") << "the second changed nothing";
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  const FileLock again(file);
  EXPECT_THAT(message_of<Error>([&] { FileLock lock(folder.file("none/out.jsonl")); }), HasSubstr("none is not there"));
}

TEST(FolderLock, AFolderThatItMadeAndThatStaysEmptyGoesWithIt) {
  const TemporaryFolder folder;
  const std::string made = folder.file("a"), kept = folder.file("b");
  fs::create_directory(kept);
  {
    const FolderLock one(made), other(kept);
    EXPECT_TRUE(fs::exists(made + "/.lock"));
  }
  EXPECT_FALSE(fs::exists(made));
  EXPECT_TRUE(fs::is_empty(kept));
  {
    const FolderLock one(made);
    write_file_atomic(made + "/file", "x");
  }
  EXPECT_TRUE(fs::exists(made + "/file"));
  EXPECT_FALSE(fs::exists(made + "/.lock"));
}

TEST(FolderLock, WhatAKilledProcessLeftIsNoObstacle) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder.path().string());
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(fs::exists(folder.file(".lock")));
  const FolderLock lock(folder.path().string());
  EXPECT_EQ(read_file(folder.file(".lock")), std::to_string(getpid()) + "\n");
}

// The lock file is removed with its lock, so that one process may open the old file while another creates a new one. There must still be
// only one holder.
TEST(FolderLock, ManyTakeAndReleaseItAndOneHoldsIt) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int held = 0;
    while (held < 100) {
      try {
        const FolderLock lock(out);
        ++held;
        if (!fs::create_directory(folder.file("held"))) _exit(1);  // it exists: another process holds the lock
        fs::remove(folder.file("held"));
      } catch (const Error&) {}
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST(FolderLock, WhatCannotBeLockedIsNamed) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("file"), "x");
  EXPECT_THAT(message_of<Error>([&] { FolderLock lock(folder.file("file")); }), HasSubstr("file: cannot make the folder: "));
  EXPECT_THAT(message_of<Error>([&] { FolderLock lock("/proc/none"); }), HasSubstr("/proc/none: cannot make the folder: "));
}

}  // namespace folder_lock_test
}  // namespace based
