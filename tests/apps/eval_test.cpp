// `based eval` and the comparison of its requests and metrics by `based golden`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "tests/apps/small_model.h"

namespace based {
namespace eval_test {

using ::testing::HasSubstr;

constexpr int kDocuments = 1000;  // more than one block of 64 KiB of text

class EvalProgram : public SmallModel {
 protected:
  static void SetUpTestSuite() {
    train_model(R"([model]
d_model = 16
layers = ["gla"]
mlp_width = 16
[train]
steps = 1
batch = 1
length = 32
evaluate_every = 0
[data]
tokenizer = "bytes"
)",
                60);
    std::filesystem::create_directories(shared("sets/winogrande"));
    std::string lines;
    for (int i = 0; i < kDocuments; ++i) {
      const std::string number = std::to_string(i * 37 % 1001);
      lines += R"({"sentence": "The cat number )" + number +
               R"( sat on the mat with the dog because _ was tired of it.", "option1": "cat )" + number +
               R"(", "option2": "the dog", "answer": ")" + std::to_string(1 + i % 2) + "\"}\n";
    }
    write_file_atomic(shared("sets/winogrande/dev.jsonl"), lines);
  }
  static std::string command(const std::string& more, const std::string& model = shared("m")) {
    return "eval --model " + model + " --tasks winogrande --data " + shared("sets") + " " + more;
  }
  static Json figures(const std::string& more, const std::string& model = shared("m")) {
    const Ran ran = run(command("--json " + more, model));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return parse_json(ran.out, "the result");
  }
};

TEST_F(EvalProgram, ListsTasksAndNamesTheNearestOne) {
  EXPECT_THAT(run("eval --list").out, HasSubstr("winogrande"));
  EXPECT_EQ(element_named(parse_json(run("eval --list --json").out, "the list"), "boolq")["few_shot"], true);
  const Ran unknown = run("eval --model stub --tokenizer bytes --tasks winogrand --data " + shared("sets"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'winogrande'"));
  EXPECT_THAT(run(command("--shots 1")).err, HasSubstr("--shots 1: task 'winogrande' has no examples"));
  EXPECT_THAT(run(command("--offset 1000")).err, HasSubstr("--offset 1000: task 'winogrande' has 1000 documents"));
  EXPECT_THAT(run("eval").err, HasSubstr("--list lists the tasks"));
}

TEST_F(EvalProgram, RefusesOptionsWithoutAnEffect) {
  for (const char* option :
       {"--device cuda", "--dtype bf16", "--invariant", "--no-fork", "--padded-columns", "--left-pad 4", "--batch 3"}) {
    const Ran ran = run(command(std::string("--tokenizer bytes ") + option, "stub"));
    EXPECT_EQ(ran.code, 2) << option;
    EXPECT_THAT(ran.err, HasSubstr("--model stub computes nothing")) << option;
  }
  EXPECT_THAT(run(command("--left-pad 4")).err, HasSubstr("--left-pad is for tasks that generate text"));
  EXPECT_THAT(run(command("--statements x")).err, HasSubstr("--statements is for the task squad_completion"));
}

// Own tasks name their data themselves. Two of one name would share their results in --out.
TEST_F(EvalProgram, OwnTasksNeedNoDataAndNamesOfTheirOwn) {
  for (const char* name : {"a", "b"}) {
    std::filesystem::create_directories(file(name));
    write_file_atomic(file(std::string(name) + "/t.toml"),
                      "data = \"t.jsonl\"\ncontext = \"{q}\"\nchoices = [\"x\", \"y\"]\ngold = \"g\"\n");
    write_file_atomic(file(std::string(name) + "/t.jsonl"), "{\"q\": \"is\", \"g\": 0}\n");
  }
  const std::string one = "eval --model " + shared("m") + " --json --tasks " + file("a/t.toml");
  EXPECT_EQ(run(one).code, 0);
  const Ran two = run(one + "," + file("b/t.toml"));
  EXPECT_EQ(two.code, 2);
  EXPECT_THAT(two.err, HasSubstr("names the task 't' twice"));
  const Ran without_data = run("eval --model " + shared("m") + " --tasks winogrande");
  EXPECT_EQ(without_data.code, 2);
  EXPECT_THAT(without_data.err, HasSubstr("--tasks winogrande needs --data"));
}

TEST_F(EvalProgram, FiguresDoNotDependOnForksAndBatches) {
  const Json forked = figures("--limit 40"), plain = figures("--limit 40 --no-fork --batch 3");
  EXPECT_EQ(forked["tasks"][0]["aggregate"], plain["tasks"][0]["aggregate"]);
  EXPECT_EQ(plain["cost"]["tokens"], plain["cost"]["tokens_read"]);
  EXPECT_GT(forked["cost"]["tokens"].get<int64_t>(), forked["cost"]["tokens_read"].get<int64_t>());
  EXPECT_THAT(run(command("--limit 40")).out, HasSubstr("winogrande"));
}

TEST_F(EvalProgram, InvariantResultsHaveTheSameBits) {
  std::string first;
  for (const char* more : {"--batch 1", "--batch 5", "--no-fork"}) {
    const std::string out = file(std::string("out") + std::to_string(first.size()) + more[2]);
    EXPECT_EQ(run(command("--limit 12 --invariant --out " + out + " " + more)).code, 0);
    if (first.empty()) first = read_file(out);
    EXPECT_EQ(read_file(out), first) << more;
  }
}

TEST_F(EvalProgram, ThatIsKilledContinuesToTheSameFile) {
  ASSERT_EQ(run(command("--out " + file("whole"))).code, 0);
  const std::string whole = read_file(file("whole"));
  std::vector<std::string> arguments;
  std::istringstream words(command("--out " + file("part")));
  for (std::string word; words >> word;) arguments.push_back(word);
  for (int kills = 0; kills < 3; ++kills) {
    const Started started(arguments, "/dev/null", file("err"));
    for (int waits = 0; waits < 5000 && (!std::filesystem::exists(file("part")) || std::filesystem::file_size(file("part")) == 0); ++waits)
      usleep(1000);
    usleep(100'000 * static_cast<unsigned>(kills));
    started.signal(SIGKILL);
    started.status();
  }
  EXPECT_EQ(run(command("--out " + file("part"))).code, 0);
  EXPECT_EQ(read_file(file("part")), whole);
  const Ran other = run(command("--limit 9 --out " + file("part")));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("options.limit is 9, and was 0"));
}

// A folder of dumped requests and of the stub model's metrics is a golden folder.
TEST_F(EvalProgram, DumpedRequestsAndMetricsAreAGoldenFolder) {
  const std::string folder = file("winogrande");
  std::filesystem::create_directories(folder);
  const Json json = figures("--tokenizer bytes --offset 3 --limit 5 --dump-requests " + folder + "/requests.jsonl", "stub");
  const std::string requests = read_file(folder + "/requests.jsonl"), metrics = dump_json(json["tasks"][0]);
  write_file_atomic(folder + "/metrics.json", metrics);
  const std::string golden = "golden " + folder + " --tokenizer bytes --data " + shared("sets");
  const Ran same = run(golden);
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_THAT(same.out, HasSubstr("pass"));

  const auto fails_with = [&](const std::string& name, const std::string& text, const std::string& old, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(old), old.size(), other);
    write_file_atomic(folder + "/" + name, changed);
    const Ran ran = run(golden);
    EXPECT_EQ(ran.code, 1) << other;
    write_file_atomic(folder + "/" + name, text);
    return ran.out;
  };
  EXPECT_THAT(fails_with("requests.jsonl", requests, "the mat", "the hat"), HasSubstr("requests.jsonl:1.contexts[0].text"));
  EXPECT_THAT(fails_with("requests.jsonl", requests, "\"greedy\":false", "\"greedy\":true"), HasSubstr(".greedy"));
  EXPECT_THAT(fails_with("metrics.json", metrics, "\"doc\":4", "\"doc\":5"), HasSubstr("metrics.json: per_document[1].doc"));
  EXPECT_THAT(fails_with("metrics.json", metrics, "\"documents\":[3,", "\"documents\":[2,"), HasSubstr("metrics.json: documents"));
  EXPECT_THAT(fails_with("metrics.json", metrics, "\"task_version\":\"1", "\"task_version\":\"7"), HasSubstr("metrics.json: task_version"));
  write_file_atomic(folder + "/metrics.json", dump_json(json));  // the whole output
  EXPECT_EQ(run(golden).code, 0);
  const Ran unreadable = run("golden " + file("absent.json") + " " + folder + " --tokenizer bytes --data " + shared("sets"));
  EXPECT_EQ(unreadable.code, 1);
  EXPECT_THAT(unreadable.out, HasSubstr("1 passed, 0 failed, 0 skipped, 1 not readable"));
  const Ran without_data = run("golden " + folder);
  EXPECT_EQ(without_data.code, 2);
  EXPECT_THAT(without_data.err, HasSubstr("--data"));
}

TEST_F(EvalProgram, NamesFileLineAndFieldOfWrongData) {
  std::filesystem::create_directories(file("winogrande"));
  const auto message = [&](const std::string& line) {
    write_file_atomic(file("winogrande/dev.jsonl"),
                      "{\"sentence\": \"a _ b\", \"option1\": \"c\", \"option2\": \"d\", \"answer\": \"1\"}\n" + line + "\n");
    const Ran ran = run("eval --model stub --tokenizer bytes --tasks winogrande --data " + folder_.file(""));
    EXPECT_EQ(ran.code, 1) << line;
    return ran.err;
  };
  EXPECT_THAT(message("{\"sentence\": \"a _ b\", \"option1\": \"c\", \"answer\": \"1\"}"), HasSubstr("dev.jsonl:2: "));
  EXPECT_THAT(message("{\"sentence\": \"a _ b\", \"option1\": 3, \"option2\": \"d\", \"answer\": \"1\"}"), HasSubstr("option1"));
  EXPECT_THAT(message("{\"sentence\": \"a _ b\", \"option1\": \"c\", \"option2\": \"d\", \"answer\": \"3\"}"), HasSubstr("answer"));
  EXPECT_THAT(message("{\"sentence\": \"\xff\"}"), HasSubstr("dev.jsonl:2"));
}

}  // namespace eval_test
}  // namespace based
