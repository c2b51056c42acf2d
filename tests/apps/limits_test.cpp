// Limits of the address space, as batch systems and shells set them (ulimit -v): the program works with fewer threads, or prints a message
// and exits with 1. It must neither die by a signal nor hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/apps/program.h"

namespace based {
namespace limits_test {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr int kStep = 20'000;                              // KiB
constexpr const char* kTimeout = "; timeout -s KILL 60 ";  // 137 where it hangs
constexpr int kLoader = 127;                               // libraries cannot be mapped: the system's loader says so

class AddressSpace : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 100; ++i) text += "the cat sat on the mat and looked at the other cat\n";
    write_file_atomic(file("text.txt"), text);
    write_file_atomic(file("run.toml"), "[model]\nd_model = 128\nlayers = [\"taylor_attention\"]\nmlp_width = 128\n[data]\ntrain = \"" +
                                            file("text.txt") +
                                            "\"\ntokenizer = \"bytes\"\nvalid_fraction = 0.2\n[train]\nbatch = 4\nlength = 64\n"
                                            "evaluate_batches = 1\nsteps = 2\n");
    write_file_atomic(file("sweep.toml"),
                      "kind = \"recall\"\n[task]\nvocab_size = 64\ntrain = [{length = 32, pairs = 4, examples = 64}]\ntest = [{length = "
                      "32, pairs = 4, examples = 64}]\n[training]\nbatch = 4\n[[series]]\nname = \"one\"\n[series.model]\nd_model = "
                      "64\nlayers = [\"gated_conv\"]\nmlp_width = 64\n");
    ASSERT_EQ(run("train " + file("run.toml") + " --out " + file("model")).code, 0);
    while (limited(least_, "--version").code == kLoader) ASSERT_LT(least_ += kStep, 10'000'000);
  }
  static Ran limited(int kibibytes, const std::string& arguments, const std::string& environment = "") {
    return run(arguments, environment + "ulimit -v " + std::to_string(kibibytes) + kTimeout);
  }
  TemporaryFolder folder_;
  int least_ = 100'000;
};

TEST_F(AddressSpace, ALimitOfItIsAMessageOrFewerThreads) {
  int finished = 0, said = 0;
  for (int more = 0; more <= 15 * kStep; more += kStep) {
    for (const std::string& arguments : std::initializer_list<std::string>{
             "generate --model " + file("model") + " --prompt the --max-tokens 3", "--version", "theory mqar --n 2 --vocab 16 --inputs 0",
             "train " + file("run.toml") + " --out " + file("out-" + std::to_string(more)),
             "experiment run " + file("sweep.toml") + " --device cpu --out " + file("sweep-" + std::to_string(more))}) {
      const Ran ran = limited(least_ + more, arguments);
      SCOPED_TRACE(std::to_string(least_ + more) + " KiB: " + arguments + "\n" + ran.err);
      EXPECT_THAT(ran.code, AnyOf(0, 1));
      EXPECT_THAT(ran.err, Not(HasSubstr("terminate called")));
      finished += ran.code == 0;
      if (ran.code != 1) continue;
      ++said;
      EXPECT_THAT(ran.err, HasSubstr("based: "));
    }
  }
  EXPECT_GT(finished, 0) << "no limit was large enough";
  EXPECT_GT(said, 0) << "no limit was small enough";
}

TEST_F(AddressSpace, ManyThreadsBecomeFewer) {
  const std::string generate = "generate --model " + file("model") + " --prompt the --max-tokens 3";
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one thread anyway";
  const Ran ran = limited(least_ + 15 * kStep, generate, "unset OMP_NUM_THREADS; ulimit -s 1000000; ");  // stacks of a gigabyte
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, testing::ContainsRegex("the address space is limited to .* \\(ulimit -v\\): 1 of [0-9]+ threads are used"));
  EXPECT_EQ(ran.out, run(generate).out);
}

// libgomp calls exit where it cannot start a thread. A limit of processes holds for all but root.
TEST(Processes, ALimitOfThemIsAMessage) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one thread anyway";
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be a user who has no processes";
  const Ran ran =
      run("bench mqar --quick", "unset OMP_NUM_THREADS; timeout -s KILL 60 setpriv --reuid=54321 --clear-groups prlimit --nproc=1 ");
  EXPECT_EQ(ran.code, 1) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("based: a library ended the program, for the reason above"));
  EXPECT_THAT(ran.err, HasSubstr("set OMP_NUM_THREADS to fewer threads"));
}

}  // namespace limits_test
}  // namespace based
