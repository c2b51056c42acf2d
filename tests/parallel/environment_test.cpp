#include "based/parallel/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"

namespace based {
namespace environment_test {

using testing::AllOf;
using testing::HasSubstr;

const Variables kTorchrun{{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm{{"SLURM_PROCID", "2"},  {"SLURM_NTASKS", "4"},      {"SLURM_LOCALID", "0"},
                       {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "100007"}, {"SLURM_STEP_NODELIST", "gpu[07-08]"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

std::string fault(const Variables& variables) {
  return message_of<UsageError>([&] { rank_environment(variables); });
}

TEST(RankEnvironment, IsReadFromTorchrun) {
  const auto rank = rank_environment(kTorchrun);
  ASSERT_TRUE(rank.has_value());
  EXPECT_EQ(rank->rank, 3);
  EXPECT_EQ(rank->world, 4);
  EXPECT_EQ(rank->local_rank, 1);
  EXPECT_EQ(rank->address, "node1");
  EXPECT_EQ(rank->port, 29500);
  EXPECT_FALSE(rank->serves_store);
  EXPECT_FALSE(rank->launched);
}

TEST(RankEnvironment, Rank0ServesTheStoreUnlessTorchrunsAgentDoes) {
  const Variables first = with(with(kTorchrun, "RANK", "0"), "LOCAL_RANK", "0");
  EXPECT_TRUE(rank_environment(first)->serves_store);
  EXPECT_FALSE(rank_environment(with(first, "TORCHELASTIC_USE_AGENT_STORE", "True"))->serves_store);
}

TEST(RankEnvironment, IsReadFromSlurm) {
  const auto rank = rank_environment(kSlurm);
  ASSERT_TRUE(rank.has_value());
  EXPECT_EQ(rank->rank, 2);
  EXPECT_EQ(rank->world, 4);
  EXPECT_EQ(rank->local_rank, 0);
  EXPECT_EQ(rank->address, "gpu07");
  EXPECT_EQ(rank->port, 15000 + 100007 % 15000);
  EXPECT_TRUE(rank_environment(with(kSlurm, "SLURM_PROCID", "0"))->serves_store);
  EXPECT_EQ(rank_environment(with(kSlurm, "MASTER_ADDR", "head"))->address, "head");
  EXPECT_EQ(rank_environment(with(kSlurm, "MASTER_PORT", "4000"))->port, 4000);
  EXPECT_EQ(rank_environment(with(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_NODELIST", "old3,old4"))->address, "old3");
}

// The step may run on some of the job's nodes, and several steps may run at once.
TEST(RankEnvironment, IsThatOfTheSlurmStep) {
  EXPECT_EQ(rank_environment(with(kSlurm, "SLURM_JOB_NODELIST", "gpu[01-08]"))->address, "gpu07");
  EXPECT_EQ(rank_environment(with(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST", "gpu[01-08]"))->address, "gpu01");
  const auto first = rank_environment(kSlurm), second = rank_environment(with(kSlurm, "SLURM_STEP_ID", "1"));
  EXPECT_NE(first->port, second->port);
  EXPECT_NE(first->attempt, second->attempt);
  EXPECT_NE(rank_environment(with(kSlurm, "SLURM_JOB_ID", "100008"))->port, second->port);
  EXPECT_EQ(rank_environment(with(without(kSlurm, "SLURM_STEP_ID"), "SLURM_STEPID", "1"))->port, second->port);
}

// It has the variables of task 0, but it is not started once for each task.
TEST(RankEnvironment, IsAbsentInABatchScriptOfSlurm) {
  const Variables script = with(without(kSlurm, "SLURM_STEP_ID"), "SLURM_PROCID", "0");
  EXPECT_FALSE(rank_environment(script).has_value());
  EXPECT_FALSE(rank_environment(with(script, "SLURM_STEP_ID", "4294967291")).has_value()) << "the number of a batch script";
}

TEST(RankEnvironment, IsAbsentWithoutVariablesAndInASlurmJobOfOneTask) {
  EXPECT_FALSE(rank_environment({{"MASTER_ADDR", "node1"}}).has_value());
  EXPECT_FALSE(rank_environment(with(with(kSlurm, "SLURM_PROCID", "0"), "SLURM_NTASKS", "1")).has_value());
}

TEST(RankEnvironment, ErrorsNameTheVariable) {
  for (const auto& [name, value] : kTorchrun) EXPECT_THAT(fault(without(kTorchrun, name)), HasSubstr(name + " is not set")) << name;
  for (const char* const name : {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"})
    EXPECT_THAT(fault(without(kSlurm, name)), HasSubstr(std::string(name) + " is not set"));
  EXPECT_THAT(fault(with(kTorchrun, "RANK", "4")), HasSubstr("RANK=4 must be below WORLD_SIZE=4"));
  EXPECT_THAT(fault(with(kTorchrun, "RANK", "-1")), AllOf(HasSubstr("RANK must be a number"), HasSubstr("'-1'")));
  EXPECT_THAT(fault(with(kTorchrun, "WORLD_SIZE", "two")), AllOf(HasSubstr("WORLD_SIZE must be a number"), HasSubstr("'two'")));
  EXPECT_THAT(fault(with(kTorchrun, "LOCAL_WORLD_SIZE", "1")), HasSubstr("LOCAL_RANK=1 must be below LOCAL_WORLD_SIZE=1"));
  EXPECT_THAT(fault(with(kTorchrun, "MASTER_PORT", "70000")), HasSubstr("MASTER_PORT must be a number from 1 to 65535"));
  EXPECT_THAT(fault(with(kSlurm, "SLURM_PROCID", "7")), HasSubstr("SLURM_PROCID=7 must be below SLURM_NTASKS=4"));
  EXPECT_THAT(fault(with(kSlurm, "SLURM_STEP_NODELIST", "gpu[07")), HasSubstr("SLURM_STEP_NODELIST"));
  EXPECT_THAT(fault(with(kSlurm, "SLURM_STEP_ID", "batch")), HasSubstr("SLURM_STEP_ID must be a number"));
}

TEST(RankEnvironment, TheFirstHostOfSlurmsList) {
  EXPECT_EQ(first_slurm_host("one", "LIST"), "one");
  EXPECT_EQ(first_slurm_host("one,two", "LIST"), "one");
  EXPECT_EQ(first_slurm_host("gpu[07-09,12],cpu1", "LIST"), "gpu07");
  EXPECT_EQ(first_slurm_host("rack[2,4]n[3-5].site", "LIST"), "rack2n3.site");
}

TEST(RankEnvironment, TheTimeoutOfCollectivesCanBeSet) {
  EXPECT_EQ(collective_timeout({}).count(), 120);
  EXPECT_EQ(collective_timeout({{"BASED_COLLECTIVE_TIMEOUT", "600"}}).count(), 600);
  EXPECT_THAT(message_of<UsageError>([] {
                collective_timeout({{"BASED_COLLECTIVE_TIMEOUT", "0"}});
              }),
              HasSubstr("BASED_COLLECTIVE_TIMEOUT"));
}

TEST(Devices, AreCountedOrNamed) {
  const GpuSupport four{true, 4};
  EXPECT_EQ(parse_devices("2", four).count, 2);
  EXPECT_FALSE(parse_devices("2", four).cpu);
  EXPECT_EQ(parse_devices("all", four).count, 4);
  EXPECT_EQ(parse_devices("cpu:3", GpuSupport{}).count, 3);
  EXPECT_TRUE(parse_devices("cpu:3", GpuSupport{}).cpu);
}

TEST(Devices, ErrorsSayHowManyThereAre) {
  const auto error_of = [](const std::string& text, GpuSupport gpus) { return message_of<UsageError>([&] { parse_devices(text, gpus); }); };
  EXPECT_THAT(error_of("3", {true, 2}), HasSubstr("2 GPUs are there"));
  EXPECT_THAT(error_of("2", {true, 1}), HasSubstr("1 GPU is there"));
  EXPECT_THAT(error_of("all", {true, 0}), HasSubstr("0 GPUs are there"));
  EXPECT_THAT(error_of("2", {false, 0}), HasSubstr("this build has no CUDA"));
  for (const char* const text : {"", "0", "-1", "two", "2x", "cpu", "cpu:", "cpu:0", "cpu:65", "cuda:1"})
    EXPECT_THAT(error_of(text, {true, 2}), HasSubstr("--devices")) << text;
}

TEST(Devices, ARankTakesTheGpuOfItsLocalNumber) {
  RankEnvironment rank;
  rank.world = 8;
  rank.rank = 5;
  rank.local_rank = 1;
  EXPECT_EQ(device_of_rank(rank, {false, 0}, {true, 4}), torch::Device("cuda:1"));
  EXPECT_EQ(device_of_rank(rank, {false, 0}, {true, 1}), torch::Device("cuda:0")) << "Slurm shows each rank its own GPU";
  EXPECT_EQ(device_of_rank(rank, {true, 0}, {false, 0}), torch::Device("cpu"));
  rank.local_world = 2;
  EXPECT_EQ(device_of_rank(rank, {false, 2}, {true, 4}), torch::Device("cuda:1"));
  EXPECT_THAT(message_of<UsageError>([&] {
                device_of_rank(rank, {false, 0}, {true, 1});
              }),
              HasSubstr("LOCAL_RANK=1 has no GPU: 1 GPU is there"));
  EXPECT_THAT(message_of<UsageError>([&] { device_of_rank(rank, {false, 4}, {true, 4}); }), HasSubstr("LOCAL_WORLD_SIZE=2"));
}

}  // namespace environment_test
}  // namespace based
