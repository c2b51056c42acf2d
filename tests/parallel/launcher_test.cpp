#include "based/parallel/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "based/core/error.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace launcher_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void await_file(const std::string& path) {
  while (!fs::exists(path) || fs::file_size(path) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// A process that has ended, but was not reaped yet, does not count.
bool is_process(const std::string& id) {
  const std::string status = contents("/proc/" + std::to_string(std::stoi(id)) + "/stat");
  return !status.empty() && status.substr(status.rfind(')') + 1, 2) != " Z";
}

// A job whose ranks run a shell script. $folder is the folder of the logs; each rank writes its process id to pid-RANK.
struct ShellJob {
  explicit ShellJob(const std::string& script, int64_t ranks = 2) {
    options.ranks = ranks;
    options.log_folder = folder.path().string();
    options.grace = std::chrono::milliseconds(200);
    options.command = {"/bin/sh", "-c", "folder=" + options.log_folder + "; echo $$ > $folder/pid-$RANK; " + script};
  }
  std::string file(const std::string& name) const { return folder.file(name); }
  int run() {
    testing::internal::CaptureStderr();
    const int code = launch_ranks(options);
    messages = testing::internal::GetCapturedStderr();
    return code;
  }
  void expect_no_process() const {
    for (int64_t rank = 0; rank < options.ranks; ++rank)
      EXPECT_FALSE(is_process(contents(file("pid-" + std::to_string(rank))))) << "rank " << rank << " still runs";
  }
  TemporaryFolder folder;
  LaunchOptions options;
  std::string messages;
};

TEST(Launcher, GivesEachRankItsVariablesAndItsLog) {
  setenv("NCCL_A_SETTING", "kept", 1);
  ShellJob job("echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $NCCL_A_SETTING >&2");
  EXPECT_EQ(job.run(), 0);
  unsetenv("NCCL_A_SETTING");
  EXPECT_EQ(contents(job.file("rank-0.log")), "0 2 0 2 127.0.0.1 kept\n");
  EXPECT_EQ(contents(job.file("rank-1.log")), "1 2 1 2 127.0.0.1 kept\n");
  EXPECT_THAT(job.messages, HasSubstr("0 2 0 2 127.0.0.1 kept\n")) << "rank 0 also writes to the terminal";
  EXPECT_THAT(job.messages, Not(HasSubstr("1 2 1 2")));
}

TEST(Launcher, NamesTheRankThatFailedAndEndsTheOthers) {
  ShellJob job(
      "[ $RANK = 1 ] || exec sleep 600; while [ ! -s $folder/pid-0 ]; do sleep 0.01; done; echo noise >&2; echo the reason >&2; exit 3");
  EXPECT_EQ(job.run(), 1);
  EXPECT_THAT(job.messages,
              HasSubstr("error: rank 1 ended with exit code 3; the last line of " + job.file("rank-1.log") + ": the reason\n"));
  EXPECT_THAT(job.messages, HasSubstr("info: rank 0 was killed by signal 15 (Terminated), as a consequence"));
  job.expect_no_process();
}

TEST(Launcher, NamesTheSignalThatKilledARank) {
  ShellJob job("[ $RANK = 0 ] || exec sleep 600; echo step 20 >&2; while [ ! -s $folder/pid-1 ]; do sleep 0.01; done; kill -9 $$");
  EXPECT_EQ(job.run(), 1);
  EXPECT_THAT(job.messages,
              HasSubstr("rank 0 was killed by signal 9 (Killed); the last line of " + job.file("rank-0.log") + ": step 20\n"));
  job.expect_no_process();
}

TEST(Launcher, QuotesOnlyMessagesOfThisRun) {
  ShellJob job("exit 2", 1);
  std::ofstream(job.file("rank-0.log")) << "line of an earlier run\n";
  EXPECT_EQ(job.run(), 2) << "wrong usage stays wrong usage";
  EXPECT_THAT(job.messages, AllOf(HasSubstr("rank 0 ended with exit code 2; it wrote nothing to"), Not(HasSubstr("earlier"))));
  EXPECT_EQ(contents(job.file("rank-0.log")), "line of an earlier run\n");
}

TEST(Launcher, KillsARankThatIgnoresSIGTERM) {
  ShellJob job(
      "[ $RANK = 1 ] || { trap '' TERM; echo ready > $folder/ready; while :; do sleep 0.05; done; }; "
      "while [ ! -s $folder/ready ]; do sleep 0.01; done; exit 1");
  EXPECT_EQ(job.run(), 1);
  EXPECT_THAT(job.messages, HasSubstr("rank 0 was killed by signal 9 (Killed), as a consequence"));
  job.expect_no_process();
}

// A rank may learn of a failure and end before the rank that failed has ended.
TEST(Launcher, BlamesTheCulpritNotTheRankThatEndsAsAConsequence) {
  ShellJob job(
      "[ $RANK = 0 ] && { echo ended > $folder/ended; exit 75; }; while [ ! -s $folder/ended ]; do sleep 0.01; done; sleep 0.2; "
      "echo the reason >&2; exit 4");
  EXPECT_EQ(job.run(), 1);
  EXPECT_THAT(job.messages, HasSubstr("error: rank 1 ended with exit code 4"));
  EXPECT_THAT(job.messages, Not(HasSubstr("error: rank 0")));
}

TEST(Launcher, PassesASignalOnOnce) {
  ShellJob job("trap 'echo saved >> $folder/saved-$RANK; exit 1' TERM; echo ready > $folder/ready-$RANK; while :; do sleep 0.05; done");
  std::thread sender([&] {
    for (const char* const name : {"ready-0", "ready-1"}) await_file(job.file(name));
    kill(getpid(), SIGTERM);
  });
  EXPECT_EQ(job.run(), 1);
  sender.join();
  EXPECT_EQ(contents(job.file("saved-0")), "saved\n");
  EXPECT_EQ(contents(job.file("saved-1")), "saved\n");
  EXPECT_THAT(job.messages, AllOf(HasSubstr("signal 15 is passed on to 2 ranks"), Not(HasSubstr("error"))));
  job.expect_no_process();
}

TEST(Launcher, AFailureAfterASignalIsAFailure) {
  ShellJob job("trap 'echo no room >&2; kill -9 $$' TERM; echo ready > $folder/ready-$RANK; while :; do sleep 0.05; done");
  std::thread sender([&] {
    for (const char* const name : {"ready-0", "ready-1"}) await_file(job.file(name));
    kill(getpid(), SIGTERM);
  });
  EXPECT_EQ(job.run(), 1);
  sender.join();
  EXPECT_THAT(job.messages, HasSubstr("was killed by signal 9 (Killed); the last line of"));
  job.expect_no_process();
}

TEST(Launcher, SaysWhatCannotBeStarted) {
  ShellJob job("");
  job.options.command = {"/nonexistent/program"};
  EXPECT_THAT(message_of<Error>([&] { launch_ranks(job.options); }), HasSubstr("cannot start rank 0: /nonexistent/program: No such file"));
}

TEST(LauncherDeathTest, TheRanksEndWithTheLauncher) {
  ShellJob job("exec sleep 600");
  EXPECT_EXIT(
      {
        std::thread([&] {
          for (const char* const name : {"pid-0", "pid-1"}) await_file(job.file(name));
          kill(getpid(), SIGKILL);
        }).detach();
        launch_ranks(job.options);
      },
      testing::KilledBySignal(SIGKILL), "");
  for (const char* const name : {"pid-0", "pid-1"})
    for (int tries = 0; is_process(contents(job.file(name))); ++tries) {
      ASSERT_LT(tries, 2000) << name << " still runs";
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

}  // namespace launcher_test
}  // namespace based
