#include "based/core/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "based/core/temporaries.h"
#include "based/core/utf8.h"
#include "file_size_limit.h"
#include "temporary_folder.h"

namespace based {
namespace files_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

TEST(Files, WrittenThenReadIsTheSame) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  for (const std::string& content : {std::string(), std::string("x\0y", 3), std::string(3'000'000, 'z')}) {
    write_file_atomic(path, content);
    EXPECT_EQ(read_file(path), content);
    const MappedFile mapped(path);
    EXPECT_EQ(text_of(mapped.bytes()), content);
  }
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Files, RelativePathsWithoutFolderWork) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file_atomic("plain", "x");
  EXPECT_EQ(read_file("plain"), "x");
  std::filesystem::current_path(before);
}

TEST(Files, PipesAreReadToTheirEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::string content(200'000, 'p');
  std::thread writer([&] {
    for (size_t done = 0; done < content.size();) done += static_cast<size_t>(write(ends[1], content.data() + done, content.size() - done));
    close(ends[1]);
  });
  EXPECT_EQ(read_file("/dev/fd/" + std::to_string(ends[0])), content);
  writer.join();
  close(ends[0]);
}

TEST(Files, MessagesNameThePath) {
  const TemporaryFolder folder;
  const std::string absent = folder.file("no/such"), here = folder.path().string();
  EXPECT_EQ(message_of<Error>([&] { read_file(absent); }), absent + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of<Error>([&] { write_file_atomic(absent, "x"); }), absent + ": cannot write: No such file or directory");
  EXPECT_EQ(message_of<Error>([&] { read_file(here); }), here + ": is a folder, not a file");
  EXPECT_EQ(message_of<Error>([&] { MappedFile mapped(here); }), here + ": is a folder, not a file");
  EXPECT_EQ(message_of<Error>([&] { MappedFile mapped("/dev/null"); }), "/dev/null: not a regular file");
  EXPECT_THAT(message_of<Error>([&] { write_file_atomic(here, "x"); }), HasSubstr(here + ": cannot be written: it is no regular file"));
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Files, WithoutCommitTheOldFileStays) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("a"), "old");
  {
    AtomicFile file(folder.file("a"));
    file.write(std::as_bytes(std::span(std::string_view("new"))));
    EXPECT_EQ(folder.entries(), 2u);
  }
  EXPECT_EQ(read_file(folder.file("a")), "old");
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Files, WhereTheDiskIsFullTheOldFileStaysAndTheProgramLives) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  write_file_atomic(path, "old");
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = message_of<Error>([&] { write_file_atomic(path, std::string(100'000, 'x')); });
  }
  EXPECT_EQ(message, path + ": cannot write: File too large");
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.entries(), 1u) << "the temporary is gone";
  write_file_atomic(path, std::string(100'000, 'x'));
  EXPECT_EQ(read_file(path).size(), 100'000u) << "and once there is room it works";
}

// A process that replaces a file repeatedly is killed at a random moment: the file must have one of its two complete contents.
TEST(Files, KilledAtAnyMomentTheFileIsTheOldOrTheNewOne) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a"), one(300'000, '1'), two(200'000, '2');
  write_file_atomic(path, one);
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      while (true) {
        write_file_atomic(path, two);
        write_file_atomic(path, one);
      }
    }
    usleep(static_cast<useconds_t>(500 + 731 * round));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string found = read_file(path);
    EXPECT_TRUE(found == one || found == two) << found.size() << " bytes after round " << round;
  }
}

TEST(Files, ADeviceAPipeOrAFolderIsNotReplaced) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(folder.file("folder"));
  for (const std::string& path : {folder.file("pipe"), folder.file("folder"), std::string("/dev/null")}) {
    const auto before = std::filesystem::status(path).type();
    EXPECT_THROW(write_file_atomic(path, "x"), Error) << path;
    EXPECT_EQ(std::filesystem::status(path).type(), before) << path;
  }
}

// A pipe, whose other end may never be opened, and an endless device.
TEST(Files, WhereARegularFileIsNeededNothingElseIsOpened) {
  const TemporaryFolder folder;
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    EXPECT_EQ(message_of<Error>([&] { read_regular_file(path); }), path + ": not a regular file");
    EXPECT_EQ(message_of<Error>([&] { MappedFile mapped(path); }), path + ": not a regular file");
    EXPECT_THAT(message_of<Error>([&] { AppendFile log(path, 0); }), HasSubstr(path + ": "));
  }
  EXPECT_EQ(message_of<Error>([&] { read_regular_file(folder.path().string()); }), folder.path().string() + ": is a folder, not a file");
}

TEST(Files, NoMoreIsReadThanTheLimitWhichTheMessageNames) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a"), sparse = folder.file("sparse");
  write_file_atomic(path, std::string(100, 'x'));
  write_file_atomic(sparse, "");
  std::filesystem::resize_file(sparse, uint64_t{1} << 40);
  EXPECT_EQ(read_file(path, 100).size(), 100u);
  EXPECT_EQ(read_regular_file(path, 100).size(), 100u);
  for (const std::string& longer : {path, sparse, std::string("/dev/zero")})
    EXPECT_EQ(message_of<Error>([&] { read_file(longer, 99); }), longer + ": longer than the 99 bytes that are read of it at most");
}

TEST(Files, ALinkStaysAndItsTargetIsReplaced) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("there"));
  write_file_atomic(folder.file("there/old"), "old");
  std::filesystem::create_symlink("there/link", folder.file("link"));
  std::filesystem::create_symlink("old", folder.file("there/link"));
  std::filesystem::create_symlink(folder.file("there/new"), folder.file("dangling"));
  for (const auto& [link, target] : {std::pair("link", "there/old"), {"dangling", "there/new"}}) {
    write_file_atomic(folder.file(link), "content");
    EXPECT_TRUE(std::filesystem::is_symlink(folder.file(link))) << link;
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(folder.file(target)))) << link;
    EXPECT_EQ(read_file(folder.file(target)), "content") << link;
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("there/link")));
  std::filesystem::create_symlink("circle", folder.file("circle"));
  EXPECT_THAT(message_of<Error>([&] { write_file_atomic(folder.file("circle"), "x"); }), HasSubstr(folder.file("circle") + ": "));
}

TEST(Files, AnExistingFilesModeStaysAndANewOneFollowsTheMask) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  const auto mode_of = [](const std::string& name) {
    struct stat status {};
    ::stat(name.c_str(), &status);
    return status.st_mode & 07777;
  };
  const mode_t before = ::umask(027);
  write_file_atomic(path, "new");
  EXPECT_EQ(mode_of(path), 0640u);
  for (const mode_t mode : {0600u, 0666u, 0755u}) {
    ::chmod(path.c_str(), mode);
    write_file_atomic(path, "again");
    EXPECT_EQ(mode_of(path), mode);
  }
  ::umask(before);
}

TEST(Files, TheLongestNamesCanBeWritten) {
  const TemporaryFolder folder;
  for (const std::string& name :
       {std::string(255, 'n'), std::string("\xc3\xa9").append(200, 'n'), std::string(99, 'n') + "\xc3\xa9" + "end"}) {
    write_file_atomic(folder.file(name), "x");
    EXPECT_EQ(read_file(folder.file(name)), "x");
    const std::string temporary = std::filesystem::path(temporary_sibling(folder.file(name))).filename().string();
    EXPECT_LE(temporary.size(), 140u) << "some file systems allow 143 bytes";
    EXPECT_TRUE(is_valid_utf8(temporary)) << temporary;
  }
}

TEST(Files, WhetherAPlaceCanBeWrittenIsKnownBefore) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a"), absent = folder.file("no/a"), here = folder.path().string();
  write_file_atomic(path, "old");
  check_writable(path);
  check_writable(folder.file("b"));
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.entries(), 1u) << "nothing is left";
  EXPECT_EQ(message_of<Error>([&] { check_writable(absent); }), absent + ": cannot write: No such file or directory");
  EXPECT_THAT(message_of<Error>([&] { check_writable(here); }), HasSubstr("no regular file"));
  const std::string long_name = folder.file(std::string(300, 'x'));
  EXPECT_EQ(message_of<Error>([&] { check_writable(long_name); }), long_name + ": cannot write: File name too long");
}

TEST(Files, WhatKilledWritersLeftIsRemoved) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "a.tmp-12-0", "b.json.tmp-7-31", "tmp-1-2", "a.tmp-x-1", "a.tmp-1", "a.tmp--1", "a.tmp-1-2.txt"})
    write_file_atomic(folder.file(name), "x");
  remove_stale_temporaries(folder.path().string());
  EXPECT_EQ(folder.entries(), 6u);
  EXPECT_FALSE(std::filesystem::exists(folder.file("a.tmp-12-0")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("b.json.tmp-7-31")));
  EXPECT_THAT(message_of<Error>([&] { remove_stale_temporaries(folder.file("none")); }),
              HasSubstr("none: the folder cannot be read: No such file or directory"));
}

TEST(AppendFile, GoesOnBehindWhatItKeeps) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log");
  {
    AppendFile log(path, 0);
    EXPECT_TRUE(log.append("one\n"));
    EXPECT_TRUE(log.append("two\n"));
    log.sync();
    EXPECT_EQ(log.size(), 8u);
  }
  EXPECT_EQ(AppendFile(path, 100).size(), 8u) << "it has fewer bytes than are to be kept";
  {
    AppendFile log(path, 4);
    EXPECT_TRUE(log.append("zwei\n"));
  }
  EXPECT_EQ(read_file(path), "one\nzwei\n");
}

TEST(AppendFile, WhereTheDiskIsFullRecordsWaitAndNoneIsTorn) {
  const TemporaryFolder folder;
  const std::string path = folder.file("log");
  AppendFile log(path, 0);
  {
    const FileSizeLimit limit(6);
    EXPECT_TRUE(log.append("one\n"));
    EXPECT_FALSE(log.append("two\n"));
    EXPECT_FALSE(log.append("three\n"));
    EXPECT_EQ(message_of<Error>([&] { log.sync(); }), path + ": cannot write: File too large");
    EXPECT_EQ(read_file(path), "one\n");
  }
  EXPECT_TRUE(log.append("four\n"));
  log.sync();
  EXPECT_EQ(read_file(path), "one\ntwo\nthree\nfour\n");
}

TEST(Files, MovedMappingsKeepTheirBytes) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("a"), "first");
  write_file_atomic(folder.file("b"), "second");
  MappedFile a(folder.file("a")), b(folder.file("b"));
  b = std::move(a);
  EXPECT_EQ(text_of(b.bytes()), "first");
  EXPECT_THAT(b.path(), EndsWith("/a"));
  const MappedFile c(std::move(b));
  write_file_atomic(folder.file("a"), "replaced");
  EXPECT_EQ(text_of(c.bytes()), "first") << "replacing a file does not disturb who has it mapped";
}

}  // namespace files_test
}  // namespace based
