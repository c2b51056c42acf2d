// `based mqar generate` from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "based/core/json.h"
#include "based/data/mqar.h"
#include "tests/apps/program.h"

namespace based {
namespace mqar_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kSmall = "mqar generate --vocab-size 64 --length 32 --pairs 4 --examples 20 ";

std::string hash_of(const std::string& options) {
  const Ran ran = run(kSmall + "--json " + options);
  EXPECT_EQ(ran.code, 0) << ran.err;
  return ran.code == 0 ? parse_json(ran.out, "stdout")["data_hash"].get<std::string>() : "";
}

TEST(MqarGenerate, TheHashDependsOnEveryOptionAndOnNothingElse) {
  const std::string hash = hash_of("");
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(hash_of(""), hash);
  std::set<std::string> seen = {hash};
  for (const char* options : {"--seed 1", "--power-a 0.1", "--random-fillers false", "--fillers-avoid-keys false", "--compat zoology",
                              "--compat zoology --filler-seed 7", "--examples 21", "--vocab-size 66"}) {
    EXPECT_TRUE(seen.insert(hash_of(options)).second) << options;
  }
}

TEST(MqarGenerate, TheDumpIsTheData) {
  const TemporaryFolder folder;
  const Ran ran = run(kSmall + "--dump " + folder.file("d.jsonl"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  MqarData data{20, 32, {}, {}};
  std::istringstream lines(read_file(folder.file("d.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const Json example = parse_json(line, "dump");
    for (const int32_t id : example["inputs"]) data.inputs.push_back(id);
    for (const int32_t id : example["labels"]) data.labels.push_back(id);
  }
  MqarConfig config;
  config.vocab_size = 64;
  config.length = 32;
  config.examples = 20;
  EXPECT_EQ(data.hash(), make_mqar(config).hash());
}

TEST(MqarGenerate, WhatCannotBeIsRefused) {
  const TemporaryFolder folder;
  for (const char* options :
       {"--pairs 9", "--vocab-size 3", "--length 0", "--examples -1", "--power-a nan", "--compat zology", "--nonsense"}) {
    const Ran ran = run(kSmall + options);
    EXPECT_EQ(ran.code, 2) << options;
    EXPECT_THAT(ran.out, IsEmpty()) << options;
  }
  const Ran absent = run(kSmall + "--dump " + folder.file("no/d.jsonl"));
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err, HasSubstr("no/d.jsonl: cannot write: No such file or directory"));
  const Ran full = run(kSmall + "--examples 2000 --dump " + folder.file("d.jsonl"), "ulimit -f 8; ");
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("d.jsonl: cannot write: File too large"));
  EXPECT_EQ(folder.entries(), 0u);
}

}  // namespace mqar_test
}  // namespace based
