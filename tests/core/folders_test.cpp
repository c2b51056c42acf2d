#include "based/core/folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace folders_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Folders, AreMadeListedAndRemoved) {
  const TemporaryFolder folder;
  EXPECT_TRUE(make_folder(folder.file("a/b")));
  EXPECT_FALSE(make_folder(folder.file("a/b"))) << "it is there";
  for (const char* name : {"a/two", "a/one"}) write_file_atomic(folder.file(name), "x");
  EXPECT_THAT(names_in(folder.file("a")), ElementsAre("b", "one", "two"));
  EXPECT_TRUE(is_folder(folder.file("a")));
  for (const char* none : {"a/one", "none", "a/one/below"}) EXPECT_FALSE(is_folder(folder.file(none))) << none;
  rename_path(folder.file("a/one"), folder.file("a/two"));
  remove_file(folder.file("a/none"));
  remove_file(folder.file("a/two"));
  EXPECT_THAT(names_in(folder.file("a")), ElementsAre("b"));
  remove_tree(folder.file("a"));
  remove_tree(folder.file("a"));
  EXPECT_EQ(folder.entries(), 0U);
  EXPECT_EQ(folder_of("a/b"), "a");
  EXPECT_EQ(folder_of("b"), ".");
}

TEST(Folders, APathThatIsNamedTwiceIsFound) {
  const TemporaryFolder folder;
  make_folder(folder.file("a"));
  std::filesystem::create_directory_symlink(folder.file("a"), folder.file("link"));
  const std::string a = folder.file("a"), link = folder.file("link"), none = folder.file("none");
  EXPECT_EQ(named_twice({a, none}), "");
  EXPECT_EQ(named_twice({a, none, link}), link);
  EXPECT_EQ(named_twice({none, a + "/../none"}), a + "/../none");
}

// A path below a file is an error for root too.
TEST(Folders, ErrorsNameThePathAndNotTheStandardLibrary) {
  const TemporaryFolder folder;
  const std::string file = folder.file("file"), below = file + "/below", long_name = folder.file(std::string(300, 'n'));
  write_file_atomic(file, "x");
  make_folder(folder.file("full/of"));
  const auto expect = [](const std::string& said, const std::string& path, const std::string& what) {
    EXPECT_THAT(said, StartsWith(path + ": ")) << said;
    EXPECT_THAT(said, HasSubstr(what));
    EXPECT_THAT(said, testing::Not(HasSubstr("filesystem"))) << said;
  };
  expect(message_of<Error>([&] { make_folder(below); }), below, "cannot make the folder: Not a directory");
  expect(message_of<Error>([&] { make_folder("/proc/none"); }), "/proc/none", "cannot make the folder");
  expect(message_of<Error>([&] { names_in(folder.file("none")); }), folder.file("none"), "cannot be read: No such file or directory");
  expect(message_of<Error>([&] { names_in(file); }), file, "cannot be read: Not a directory");
  expect(message_of<Error>([&] { is_folder(long_name); }), long_name, "cannot be looked for: File name too long");
  expect(message_of<Error>([&] { remove_file(below); }), below, "cannot be removed: Not a directory");
  expect(message_of<Error>([&] { remove_file(folder.file("full")); }), folder.file("full"), "cannot be removed: Directory not empty");
  expect(message_of<Error>([&] { remove_tree("/proc/self/status"); }), "/proc/self/status", "cannot be removed");
  expect(message_of<Error>([&] { rename_path(folder.file("none"), file); }), folder.file("none"), "cannot be renamed to " + file);
}

}  // namespace folders_test
}  // namespace based
