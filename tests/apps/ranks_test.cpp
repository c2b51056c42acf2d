// `based train` by several ranks: errors that are known before the ranks start, and ranks that no launcher of ours has started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "based/core/files.h"
#include "tests/apps/program.h"
#include "tests/core/unused_port.h"

namespace based {
namespace ranks_program_test {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kModel =
    "[model]\nd_model = 16\nlayers = [\"gated_conv\"]\nmlp = \"none\"\n"
    "[train]\nsteps = 3\nbatch = 2\nlength = 8\n[data]\ntokenizer = \"bytes\"\ntrain = \"";

std::string make_config(const TemporaryFolder& folder) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i) + "\n";
  write_file_atomic(folder.file("text.txt"), text);
  write_file_atomic(folder.file("run.toml"), kModel + folder.file("text.txt") + "\"\n");
  return folder.file("run.toml");
}

// Runs the command as both ranks of a job, without a launcher.
std::array<Ran, 2> run_both(const std::string& command) {
  std::array<Ran, 2> ranks;
  const std::string job = " OMP_NUM_THREADS=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(unused_port()) + " ";
  const auto start = [&](size_t rank) {
    const std::string number = std::to_string(rank);
    ranks[rank] = run(command, "RANK=" + number + " LOCAL_RANK=" + number + job);
  };
  std::thread second([&] { start(1); });
  start(0);
  second.join();
  return ranks;
}

TEST(RanksProgram, WhatIsWrongWithTheConfigIsSaidOnceBeforeRanksStart) {
  const TemporaryFolder folder;
  const std::string command = "train " + make_config(folder) + " --devices cpu:2 --out " + folder.file("out");
  struct Case {
    std::string options, message;
    int code;
  };
  for (const Case& wrong : {Case{" --set train.batch=3", "3 rows, 1 parts, 2 devices", 2}, Case{" --set train.sped=1", "sped", 2},
                            Case{" --set model.d_model=0", "d_model", 2},
                            Case{" --set data.train=" + folder.file("none"), "none: no such file or folder; data.train names it", 1},
                            Case{" --set data.valid=" + folder.file("none"), "none: no such file or folder; data.valid names it", 1}}) {
    const Ran ran = run(command + wrong.options);
    EXPECT_EQ(ran.code, wrong.code) << ran.err;
    EXPECT_THAT(ran.err, AllOf(HasSubstr(wrong.message), Not(HasSubstr("rank-"))));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_FALSE(fs::exists(folder.file("out"))) << wrong.options;
  }
}

TEST(RanksProgram, EachRankLogsAlsoWithoutALauncher) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out"), command = "train " + make_config(folder) + " --out " + out;
  for (const Ran& rank : run_both(command)) EXPECT_EQ(rank.code, 0) << rank.err;
  for (const char* rank : {"0", "1"})
    EXPECT_THAT(read_file(out + "/logs/rank-" + rank + ".log"), HasSubstr(std::string("rank ") + rank + " of 2")) << rank;
  // The folder now holds checkpoints, which rank 0 refuses.
  const auto refused = run_both(command);
  EXPECT_EQ(refused[0].code, 2);
  EXPECT_EQ(refused[1].code, 75) << refused[1].err;
  EXPECT_THAT(read_file(out + "/logs/rank-0.log"), HasSubstr("based: " + out + ": holds the checkpoints of a run"));
  EXPECT_THAT(read_file(out + "/logs/rank-1.log"), HasSubstr("error: this rank ends because another one did: rank 0 failed"));
}

}  // namespace ranks_program_test
}  // namespace based
