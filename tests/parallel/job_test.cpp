#include "based/parallel/job.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <iostream>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "based/core/error.h"
#include "based/parallel/launcher.h"
#include "tests/core/temporary_folder.h"
#include "tests/core/unused_port.h"
#include "tests/parallel/operations.h"

namespace based {
namespace job_test {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Milliseconds = std::chrono::milliseconds;

RankEnvironment rank_of_two(int64_t rank) {
  RankEnvironment result;
  result.rank = rank, result.world = 2, result.address = "node1", result.port = 29500;
  return result;
}

// Run by TwoProcessesSumOverTCP, in two processes.
TEST(Job, DISABLED_OneOfTwoProcesses) {
  const auto rank = rank_environment();
  ASSERT_TRUE(rank.has_value());
  Job job(*rank, torch::kCPU);
  ASSERT_EQ(job.ranks()->world(), 2);
  for (const auto type : {torch::kFloat, torch::kBFloat16}) expect_right_operations(*job.ranks(), 7, type);
  const int64_t count = (5 << 20) / 4;  // 5 MiB, in parts of 4 MiB
  const Tensor values = values_of(rank->rank, count, torch::kFloat);
  job.ranks()->all_reduce(values)->wait();
  EXPECT_TRUE(at::equal(values, expected_sum(2, count, torch::kFloat)));
  job.leave();
}

// Run by ARankThatIsKilledEndsTheOthers: rank 1 dies while rank 0 is blocked in a collective.
TEST(Job, DISABLED_OneOfTwoIsKilled) {
  const auto rank = rank_environment();
  ASSERT_TRUE(rank.has_value());
  const Job job(*rank, torch::kCPU);
  if (rank->rank == 1) {
    std::cerr << "step 20" << std::endl;
    std::raise(SIGKILL);
  }
  job.ranks()->all_reduce(at::zeros({1}))->wait();
}

// Run by ARankThatServesTheStoreAndIsKilledEndsTheOthers: rank 0 dies while rank 1 is blocked in a collective.
TEST(Job, DISABLED_RankZeroIsKilled) {
  const auto rank = rank_environment();
  ASSERT_TRUE(rank.has_value());
  const Job job(*rank, torch::kCPU);
  if (rank->rank == 0) std::raise(SIGKILL);
  job.ranks()->all_reduce(at::zeros({1}))->wait();
}

// Run by ARankThatFailsTellsTheOthers: rank 1 leaves rank 0 in a barrier.
TEST(Job, DISABLED_OneOfTwoFails) {
  const auto rank = rank_environment();
  ASSERT_TRUE(rank.has_value());
  JobOptions options;
  options.watch.poll = Milliseconds(10);
  {
    const Job job(*rank, torch::kCPU, options);
    if (rank->rank == 0) job.ranks()->barrier();
  }
  std::this_thread::sleep_for(Milliseconds(2000));  // so that rank 0 ends first
  _exit(4);
}

// Runs a disabled test in two processes, and returns the exit code. `variables`: changes to the environment, as arguments of env.
int run_two(const std::string& test, const TemporaryFolder& folder, const std::vector<std::string>& variables = {}) {
  LaunchOptions options;
  options.ranks = 2;
  options.log_folder = folder.path().string();
  options.command = {"/usr/bin/env"};
  options.command.insert(options.command.end(), variables.begin(), variables.end());
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  for (const std::string& argument :
       {program, "--gtest_filter=Job.DISABLED_" + test, std::string("--gtest_also_run_disabled_tests"), std::string("--gtest_brief=1")})
    options.command.push_back(argument);
  return launch_ranks(options);
}

TEST(Job, TwoProcessesSumOverTCP) { EXPECT_EQ(run_two("OneOfTwoProcesses", TemporaryFolder()), 0); }

TEST(Job, ARankThatIsKilledEndsTheOthers) {
  testing::internal::CaptureStderr();
  const int code = run_two("OneOfTwoIsKilled", TemporaryFolder());
  const std::string messages = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 1);
  EXPECT_THAT(messages, ContainsRegex("error: rank 1 was killed by signal 9 .Killed.; the last line of .*rank-1.log: step 20"));
  EXPECT_THAT(messages, ContainsRegex("info: rank 0 .*, as a consequence"));
}

// Without a launcher that watches the ranks.
TEST(Job, ARankThatFailsTellsTheOthers) {
  testing::internal::CaptureStderr();
  const int code = run_two("OneOfTwoFails", TemporaryFolder(), {"-u", "BASED_LAUNCHED"});
  const std::string messages = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 1);
  EXPECT_THAT(messages, HasSubstr("this rank ends because another one did: rank 1 failed"));
  EXPECT_THAT(messages, HasSubstr("error: rank 1 ended with exit code 4"));
}

// A store that the test serves, as torchrun's agent does, and the environment of rank 1 of 2.
struct Served {
  Served() : server(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options())), store(server) {
    rank.rank = 1;
    rank.world = 2;
    rank.address = "127.0.0.1";
    rank.port = server->getPort();
  }
  static c10d::TCPStoreOptions options() {
    c10d::TCPStoreOptions result;
    result.port = 0;
    result.isServer = true;
    result.waitWorkers = false;
    return result;
  }
  std::string failure() const {
    JobOptions options;
    options.join_timeout = Milliseconds(100);
    return message_of<Error>([&] { const Job job(rank, torch::kCPU, options); });
  }
  c10::intrusive_ptr<c10d::TCPStore> server;
  StoreHandle store;
  RankEnvironment rank;
};

// Runs a disabled test as a rank that no launcher watches. Returns its messages and its exit code.
std::string run_rank(const std::string& test, int64_t rank, int port) {
  const std::string command = "RANK=" + std::to_string(rank) + " WORLD_SIZE=2 LOCAL_RANK=" + std::to_string(rank) +
                              " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port) + " " +
                              std::filesystem::read_symlink("/proc/self/exe").string() + " --gtest_filter=Job.DISABLED_" + test +
                              " --gtest_also_run_disabled_tests --gtest_brief=1 2>&1; echo code $?";
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  pclose(pipe);
  return output;
}

// Rank 0 serves the store.
TEST(Job, ARankThatServesTheStoreAndIsKilledEndsTheOthers) {
  const int port = unused_port();
  std::string second;
  std::thread other([&] { second = run_rank("RankZeroIsKilled", 1, port); });
  run_rank("RankZeroIsKilled", 0, port);
  other.join();
  EXPECT_THAT(second, HasSubstr("the store of this job at 127.0.0.1:" + std::to_string(port) +
                                " does not answer: rank 0, which serves it, has ended"));
  EXPECT_THAT(second, HasSubstr("code 75"));
  EXPECT_THAT(second, Not(HasSubstr("frame #"))) << "c10d's own warning";
}

TEST(Job, NamesTheRanksThatDoNotJoinAndTellsTheOthers) {
  const Served job;
  EXPECT_THAT(job.failure(), HasSubstr("rank 0 of 2 ranks did not join"));
  EXPECT_THAT(job.store->get_to_str("based/0/stop"), HasSubstr("rank 1 failed"));
}

TEST(Job, SaysWhichRanksItWaitsFor) {
  Served job;
  job.rank.rank = 0;
  JobOptions options;
  options.join_notice = Milliseconds(10);
  options.join_timeout = Milliseconds(1010);
  testing::internal::CaptureStderr();
  EXPECT_NE(message_of<Error>([&] { const Job joined(job.rank, torch::kCPU, options); }), "");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("info: waiting for rank 1 of 2 ranks to join, for at most 1 s more"));
}

TEST(Job, RefusesARankThatWasStartedTwice) {
  const Served job;
  job.store->add("based/0/started/1", 1);
  EXPECT_THAT(job.failure(), HasSubstr("rank 1 was started twice"));
  EXPECT_TRUE(job.store->check({"based/0/stop"}));
}

TEST(Job, RefusesRanksOfDifferentWorlds) {
  const Served job;
  job.store->set("based/0/world", std::string("3"));
  EXPECT_THAT(job.failure(), HasSubstr("WORLD_SIZE is 2 for rank 1, 3 for the rank that joined first"));
}

TEST(Job, SaysThatNothingServesTheStore) {
  const int unused = socket(AF_INET, SOCK_STREAM, 0);  // bound, so that no other program takes the port, but not listening
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(unused, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(unused, reinterpret_cast<sockaddr*>(&address), &size), 0);
  RankEnvironment rank = rank_of_two(1);
  rank.address = "127.0.0.1";
  rank.port = ntohs(address.sin_port);
  JobOptions options;
  options.connect_timeout = Milliseconds(1000);
  EXPECT_THAT(message_of<Error>([&] { const Job job(rank, torch::kCPU, options); }),
              HasSubstr("nothing serves the store of this job at 127.0.0.1:" + std::to_string(rank.port)));
  close(unused);
}

TEST(Job, OfOneRankNeedsNoStore) {
  Job job(RankEnvironment{}, torch::kCPU);
  EXPECT_EQ(job.ranks()->world(), 1);
  job.leave();
}

// A watch that is to end the process has time for it on a busy machine; one that is not has a second.
[[noreturn]] void wait_for_watch(const std::string& value) {
  std::this_thread::sleep_for(std::chrono::seconds(value == Watch::kDone ? 1 : 60));
  _exit(0);
}

// Rank 0 watches rank 1, whose key holds `value`, until the process ends.
[[noreturn]] void watch_rank_1(const std::string& value, const std::string& stop) {
  const StoreHandle store = c10::make_intrusive<c10d::HashStore>();
  store->set(Watch::alive_key(1), value);
  if (!stop.empty()) store->set("stop", stop);
  WatchOptions options;
  options.poll = Milliseconds(5);
  options.beat = Milliseconds(10);
  options.silence = Milliseconds(100);
  Watch watch(store, rank_of_two(0), options);
  watch.all_joined();
  wait_for_watch(value);
}

// Rank 1 is a process that ends by itself, with `value` under its key.
[[noreturn]] void watch_process_of_rank_1(const std::string& value) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) _exit(2);
  const pid_t child = fork();
  if (child == 0) {
    const std::string description = SiblingProcesses::own_description();
    _exit(write(pipe_ends[1], description.data(), description.size()) == static_cast<ssize_t>(description.size()) ? 0 : 1);
  }
  char description[256];
  const ssize_t size = read(pipe_ends[0], description, sizeof description);
  if (size <= 0) _exit(2);
  const StoreHandle store = c10::make_intrusive<c10d::HashStore>();
  store->set(Watch::alive_key(1), value);
  store->set(Watch::process_key(1), std::string(description, static_cast<size_t>(size)));
  WatchOptions options;
  options.poll = Milliseconds(5);
  Watch watch(store, rank_of_two(0), options);
  watch.all_joined();
  wait_for_watch(value);
}

TEST(WatchDeathTest, EndsTheProcessWhenTheProcessOfARankEnds) {
  EXPECT_EXIT(watch_process_of_rank_1("1"), testing::ExitedWithCode(kConsequenceExit), "the process of rank 1 has ended");
}

TEST(WatchDeathTest, AProcessThatHasDoneItsWorkMayEnd) {
  EXPECT_EXIT(watch_process_of_rank_1(Watch::kDone), testing::ExitedWithCode(0), "");
}

TEST(SiblingProcesses, ThoseOfOtherHostsAndThisProcessAreLeftOut) {
  SiblingProcesses processes;
  processes.add(1, SiblingProcesses::own_description());
  processes.add(2, "another-boot pid:[4026531836] 1");
  processes.add(3, "");
  EXPECT_TRUE(processes.take_ended().empty());
}

TEST(WatchDeathTest, EndsTheProcessWhenARankIsSilent) {
  EXPECT_EXIT(watch_rank_1("1", ""), testing::ExitedWithCode(kConsequenceExit), "rank 1 has sent no heartbeat");
}

TEST(WatchDeathTest, EndsTheProcessWhenARankSaysStop) {
  EXPECT_EXIT(watch_rank_1("1", "rank 1 failed"), testing::ExitedWithCode(kConsequenceExit), "because another one did: rank 1 failed");
}

// A store whose host is lost: a request to it blocks, here for `delay`.
class SlowStore final : public c10d::HashStore {
 public:
  explicit SlowStore(Milliseconds delay) : delay_(delay) {}
  bool check(const std::vector<std::string>& keys) override {
    std::this_thread::sleep_for(delay_);
    return HashStore::check(keys);
  }

 private:
  const Milliseconds delay_;
};

[[noreturn]] void watch_slow_store(Milliseconds delay) {
  WatchOptions options;
  options.poll = options.tick = Milliseconds(10);
  options.silence = Milliseconds(1000);
  const Watch watch(c10::make_intrusive<SlowStore>(delay), rank_of_two(1), options);
  std::this_thread::sleep_for(delay.count() < 1000 ? Milliseconds(2000) : Milliseconds(60000));
  _exit(0);
}

TEST(WatchDeathTest, EndsTheProcessWhenTheStoreIsSilent) {
  EXPECT_EXIT(watch_slow_store(std::chrono::minutes(10)), testing::ExitedWithCode(kConsequenceExit),
              "the store of this job at node1:29500 has not answered for 1 s: the host of rank 0, or the network to it, is gone");
}

TEST(WatchDeathTest, AStoreMayBeSlow) { EXPECT_EXIT(watch_slow_store(Milliseconds(100)), testing::ExitedWithCode(0), ""); }

// The others poll the store twice a second.
TEST(WatchDeathTest, TheRankThatServesTheStoreKeepsItForTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EXIT(
      {
        const StoreHandle store = c10::make_intrusive<c10d::HashStore>();
        store->set("stop", std::string("rank 1 failed"));
        RankEnvironment rank = rank_of_two(0);
        rank.serves_store = true;
        const Watch watch(store, rank, {.poll = Milliseconds(5)});
        wait_for_watch("");
      },
      testing::ExitedWithCode(kConsequenceExit), "rank 1 failed");
  EXPECT_GE(std::chrono::steady_clock::now() - start, kLastWords);
}

TEST(WatchDeathTest, ARankThatHasDoneItsWorkMayBeSilent) { EXPECT_EXIT(watch_rank_1(Watch::kDone, ""), testing::ExitedWithCode(0), ""); }

}  // namespace job_test
}  // namespace based
