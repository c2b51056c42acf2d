// `based mqar generate` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "based/core/json.h"
#include "based/data/mqar.h"
#include "tests/apps/program.h"

namespace based {
namespace {

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

class MqarTrain : public testing::Test {
 protected:
  MqarTrain() {
    write_file_atomic(folder_.file("sweep.toml"), R"(
[task]
vocab_size = 32
train = [{length = 16, pairs = 2, examples = 64}]
test = [{length = 16, pairs = 2, examples = 40}]
[run]
batch = 16
[model]
d_model = 16
mlp = "none"
[[models]]
name = "Based"
model.layers = ["base_conv", "mixer"]
model.mixers.mixer = {type = "taylor_attention", heads = 1, feature_dim = [2, 4]}
)");
  }
  Ran train(const std::string& options = "") { return run("mqar train " + folder_.file("sweep.toml") + " --out " + out_ + " " + options); }
  std::string results() const { return read_file(out_ + "/results.jsonl"); }
  TemporaryFolder folder_;
  std::string out_ = folder_.file("out");
};

TEST_F(MqarTrain, SaysHowManyRunsWereThereAndMakesThemAnewWhenTold) {
  const Ran first = train();
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("; 0 of 2 from results.jsonl\n"));
  const std::string rows = results();
  const Ran again = train();
  EXPECT_THAT(again.out, HasSubstr("; 2 of 2 from results.jsonl (--fresh trains them again)\n"));
  EXPECT_EQ(results(), rows);
  const Json json = parse_json(train("--json").out, "stdout");
  EXPECT_EQ(json["runs"], 2);
  EXPECT_EQ(json["reused"], 2);
  const Ran fresh = train("--fresh");
  EXPECT_THAT(fresh.out, HasSubstr("; 0 of 2 from results.jsonl\n"));
  EXPECT_NE(results(), rows) << "the seconds differ";
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 2);
}

TEST_F(MqarTrain, ResultsOfOtherCodeAreNamedAndNotUsed) {
  ASSERT_EQ(train().code, 0);
  std::string rows = results();
  const size_t code = rows.find("\"code\":\"");
  ASSERT_NE(code, std::string::npos);
  rows[code + 8] = rows[code + 8] == '0' ? '1' : '0';
  write_file_atomic(out_ + "/results.jsonl", rows);
  const Ran other = train();
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("; 1 of 2 from results.jsonl"));
  EXPECT_THAT(other.err, HasSubstr("results.jsonl: has results of code " + rows.substr(code + 8, 16) + ", which are not used"));
  EXPECT_THAT(other.err, HasSubstr(": Based feature_dim=2\n"));
  EXPECT_TRUE(results().starts_with(rows)) << "they stay in the file";
}

TEST_F(MqarTrain, ASecondSweepIntoTheSameFolderFailsAtOnce) {
  const Started first({"mqar", "train", folder_.file("sweep.toml"), "--out", out_, "--set", "run.epochs=100000"}, folder_.file("o"),
                      folder_.file("e"));
  for (int i = 0; i < 30'000 && !std::filesystem::exists(out_ + "/.lock"); ++i) usleep(1000);
  const Ran second = train();
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr(out_ + ": another run is writing to this folder (process "));
  first.signal(SIGINT);
  EXPECT_EQ(WEXITSTATUS(first.status()), 1);
}

TEST_F(MqarTrain, WhatCannotRunIsWrongUsage) {
  const std::map<std::string, std::string> says{
      {"model.d_model=[]", "model.d_model is an empty list: nothing would be trained"},
      {"models.0.model.mixers.mixer.feature_dim=[]", "feature_dim is an empty list"},
      {"run.epochs=4611686018427387904", "run.epochs times the batches of an epoch must be below 2^31"},
      {"model=5", "--set model=5: 'model' must be a table, not the integer 5"},
      {"models.0.model=5", "--set models.0.model=5: 'models[0].model' must be a table"},
      {"run.learning_rates=[1e-3,1e300]", "learning_rate must be above 0 and at most 1e6"},
      {"run.learning_rates=[nan]", "learning_rate must be above 0"},
      {"optimizer.eps=nan", "eps must be"},
      {"task.power_a=inf", "power_a must be"},
      {"model.max_positions=8", "examples of 16 tokens are more than model.max_positions = 8"}};
  for (const auto& [setting, message] : says) {
    const Ran ran = train("--set '" + setting + "'");
    EXPECT_EQ(ran.code, 2) << setting;
    EXPECT_THAT(ran.err, HasSubstr(message)) << setting;
  }
  write_file_atomic(folder_.file("sweep.toml"), "[[models]]\nname = \"nothing\"\n[task]\ntrain = [{}]\ntest = [{}]\n");
  const Ran no_model = train();
  EXPECT_EQ(no_model.code, 2);
  EXPECT_THAT(no_model.err, HasSubstr("model.layers"));
  EXPECT_FALSE(std::filesystem::exists(out_)) << "nothing was written";
}

TEST_F(MqarTrain, ADamagedResultsFileIsNamedByLine) {
  ASSERT_EQ(train().code, 0);
  const std::string rows = results();
  for (const char* line : {"{\"nmae\":\"x\"}\n", "{\"recall\":\"high\"}\n", "7\n", "{\n"}) {
    write_file_atomic(out_ + "/results.jsonl", rows + line);
    const Ran ran = train();
    EXPECT_EQ(ran.code, 1) << line;
    EXPECT_THAT(ran.err, HasSubstr("results.jsonl:3")) << line;
  }
}

TEST_F(MqarTrain, EvaluatingMoreTokensThanTheModelHasPositionsIsRefused) {
  ASSERT_EQ(train("--set model.max_positions=16").code, 0);
  const std::string model = out_ + "/" + parse_json(results().substr(0, results().find('\n')), "row")["model"].get<std::string>();
  const Ran ran = run("mqar eval --model " + model + " --length 32 --pairs 2");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.err, HasSubstr("examples of 32 tokens are more than model.max_positions = 16"));
}

// The sweep's own figure again, from a model that has learnt its few training examples by heart.
TEST(MqarEval, MeasuresOnTheTestDataOfTheSweep) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("sweep.toml"),
                    "[task]\nvocab_size = 64\npower_a = 0.5\nrandom_fillers = false\nseed = 3\n"
                    "train = [{length = 32, pairs = 4, examples = 8}]\ntest = [{length = 32, pairs = 4, examples = 200}]\n"
                    "[run]\nbatch = 8\nepochs = 60\nlearning_rates = [0.01]\n[[models]]\nname = \"one\"\n"
                    "[models.model]\nd_model = 32\nlayers = [\"gated_conv\"]\nmlp_width = 32\n");
  const Ran sweep = run("mqar train " + folder.file("sweep.toml") + " --json --out " + folder.file("out"));
  ASSERT_EQ(sweep.code, 0) << sweep.err;
  const Json result = parse_json(sweep.out, "stdout")["results"][0];
  const std::string eval = "mqar eval --json --length 32 --pairs 4 --examples 200 --model " + folder.file("out/") +
                           result["model"].get<std::string>() + " --seed 3 --power-a 0.5 --random-fillers ";
  const Ran same = run(eval + "false"), other = run(eval + "true");
  ASSERT_EQ(same.code, 0) << same.err;
  EXPECT_DOUBLE_EQ(parse_json(same.out, "stdout")["recall"].get<double>(), result["recall"].get<double>());
  EXPECT_NE(parse_json(same.out, "stdout")["data_hash"], parse_json(other.out, "stdout")["data_hash"]);
  const Ran none = run(eval + "true --examples 0");
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("--examples must be an integer from 1"));
}

}  // namespace
}  // namespace based
