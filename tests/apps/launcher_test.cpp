// The Debian package's /usr/bin/based: where it looks for LibTorch, and its words if there is none or another version. The program that it
// starts is a shell script here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/apps/program.h"

namespace based {
namespace launcher_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Launcher : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }

  void SetUp() override {
    if (fs::exists("/etc/based/libtorch")) GTEST_SKIP() << "/etc/based/libtorch names a LibTorch for every program of this system";
    for (const char* name : {"bin", "libexec/based", "nothing"}) fs::create_directories(file(name));
    fs::copy_file(BASED_LAUNCHER_PROGRAM, file("bin/based"));
    write_executable("libexec/based/based", "#!/bin/sh\necho \"$LD_LIBRARY_PATH\"\nfor word; do echo \"[$word]\"; done\nexit 7\n");
    write_executable("nothing/python3", "#!/bin/sh\nexit 1\n");
  }

  void write_executable(const std::string& name, const std::string& text) const {
    write_file_atomic(file(name), text);
    fs::permissions(file(name), fs::perms::owner_all);
  }

  // A LibTorch with headers of a version, or the libraries alone.
  std::string make_libtorch(const std::string& name, const std::string& minor) const {
    fs::create_directories(file(name + "/lib"));
    write_file_atomic(file(name + "/lib/libtorch_cpu.so"), "");
    if (!minor.empty()) {
      fs::create_directories(file(name + "/include/torch/headeronly"));
      write_file_atomic(file(name + "/include/torch/headeronly/version.h"),
                        "#pragma once\n#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR " + minor +
                            "\n#define TORCH_VERSION_PATCH 0\n#define TORCH_VERSION_ABI_TAG 0\n");
    }
    return fs::canonical(file(name)).string();
  }

  // Starts the launcher with these variables, and with a python3 that has no torch unless `variables` names another PATH.
  Ran launch(const std::string& variables, const std::string& arguments = "") const {
    const std::string command = "env -u BASED_LIBTORCH -u LD_LIBRARY_PATH PATH=" + file("nothing") + ":$PATH " + variables + " " +
                                file("bin/based") + " " + arguments + " >" + file("out") + " 2>" + file("err");
    Ran ran;
    ran.code = WEXITSTATUS(std::system(command.c_str()));
    ran.out = read_file(file("out"));
    ran.err = read_file(file("err"));
    return ran;
  }

 private:
  TemporaryFolder folder_;
};

TEST_F(Launcher, StartsTheProgramWithTheLibraries) {
  const std::string torch = make_libtorch("torch", "");
  for (const std::string& named : {torch, torch + "/lib"}) {
    const Ran ran = launch("BASED_LIBTORCH=" + named, "generate --prompt 'two words' ''");
    EXPECT_EQ(ran.code, 7) << ran.err;
    EXPECT_EQ(ran.out, torch + "/lib\n[generate]\n[--prompt]\n[two words]\n[]\n");
  }
  EXPECT_EQ(launch("LD_LIBRARY_PATH=/nowhere:" + torch + "/lib").out, torch + "/lib:/nowhere:" + torch + "/lib\n");
}

TEST_F(Launcher, ResolvesLinksSinceLibTorchFindsItsNeighboursFromItsOwnFolder) {
  const std::string torch = make_libtorch("torch", "");
  fs::create_symlink(torch + "/lib", file("link"));
  EXPECT_EQ(launch("BASED_LIBTORCH=" + file("link")).out, torch + "/lib\n");
}

TEST_F(Launcher, FindsTheTorchOfPython) {
  const std::string torch = make_libtorch("torch", "");
  fs::create_directories(file("python"));
  write_executable("python/python3", "#!/bin/sh\nprintf %s " + torch + "\n");
  EXPECT_EQ(launch("PATH=" + file("python") + ":$PATH").out, torch + "/lib\n");
}

TEST_F(Launcher, SaysWhatToInstallWhereThereIsNone) {
  const Ran ran = launch("");
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err,
              AllOf(HasSubstr("based: LibTorch was not found in BASED_LIBTORCH, LD_LIBRARY_PATH, /etc/based/libtorch or python3's torch."),
                    HasSubstr("pip install torch=="), HasSubstr("BASED_LIBTORCH, or for all users by a link")));
}

TEST_F(Launcher, RefusesAWrongFolderAndAnotherVersion) {
  const Ran wrong = launch("BASED_LIBTORCH=" + file("nothing"));
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("BASED_LIBTORCH is " + file("nothing") + ", where no LibTorch is"));
  const std::string old = make_libtorch("old", "1");
  const Ran other = launch("BASED_LIBTORCH=" + old);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, AllOf(HasSubstr(old + "/lib (BASED_LIBTORCH) has version 2.1.0; this program needs "), HasSubstr("pip install")));
}

}  // namespace launcher_test
}  // namespace based
