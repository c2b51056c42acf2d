// `based data`: packing, checking, and that a failure leaves no files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "based/core/hash.h"
#include "based/core/json.h"
#include "tests/apps/program.h"
#include "tests/data/compressed.h"

namespace based {
namespace data_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Data : public testing::Test {
 protected:
  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string write(const std::string& name, const std::string& content) {
    write_file_atomic(file(name), content);
    return file(name) + " ";
  }
  // Runs `data pack` with output folder "set", expects it to fail, and that "set" does not exist afterwards.
  void expect_no_set(const std::string& arguments, int code, const std::string& says, const std::string& before = "") {
    const Ran ran = run("data pack " + arguments + " --tokenizer bytes --shard-tokens 8 --out " + file("set"), before);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.err;
    EXPECT_THAT(ran.out, IsEmpty()) << arguments;
    EXPECT_THAT(ran.err, HasSubstr(says)) << arguments;
    EXPECT_FALSE(std::filesystem::exists(file("set"))) << arguments;
  }
  TemporaryFolder folder_;
};

TEST_F(Data, PacksEveryFormatPlainAndCompressed) {
  const std::vector<std::pair<std::string, std::string>> texts = {{"a.txt", "hello"},
                                                                  {"b.md", "# x\n"},
                                                                  {"c.jsonl", "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"two\"}\n"},
                                                                  {"d.fa", ">r\nAC\nGT\n"}};
  std::string plain, packed;
  for (const auto& [name, text] : texts) {
    plain += write(name, text);
    packed += write(name + ".zst", compressed(text));
  }
  std::vector<Json> said;
  for (const std::string& files : {plain, packed}) {
    const std::string out = file("set" + std::to_string(said.size()));
    const Ran pack = run("data pack " + files + "--tokenizer bytes --shard-tokens 8 --json --out " + out);
    ASSERT_EQ(pack.code, 0) << pack.err;
    const Json report = parse_json(pack.out, "stdout");
    EXPECT_EQ(report["documents"], 5);
    EXPECT_EQ(report["empty"], 1);
    EXPECT_EQ(report["bytes"], 5 + 4 + 3 + 3 + 4);
    EXPECT_EQ(report["tokens"], 19 + 5);
    EXPECT_EQ(report["shards"], 4);
    const Ran inspect = run("data inspect --json --tokenizer bytes " + out);
    ASSERT_EQ(inspect.code, 0) << inspect.err;
    said.push_back(parse_json(inspect.out, "stdout"));
    EXPECT_EQ(said.back()["tokens"], 24);
    EXPECT_EQ(said.back()["documents"], 5);
  }
  EXPECT_EQ(said[0]["hash"], said[1]["hash"]) << "compression does not change the set";
  EXPECT_THAT(run("data inspect " + file("set0")).out, AllOf(HasSubstr("24 tokens in 5 documents"), HasSubstr("whole")));
}

TEST_F(Data, ShufflesWithAnyNumberOfThreadsAndListsTheSources) {
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += "{\"text\":\"document " + std::to_string(i) + "\"";
    if (i % 3 != 0) lines += std::string(",\"meta\":{\"pile_set_name\":\"") + (i % 3 == 1 ? "Pile-CC" : "ArXiv") + "\"}";
    lines += "}\n";
  }
  const std::string pack = "data pack " + write("a.jsonl", lines) + "--tokenizer bytes --shard-tokens 500 --out ";
  const Ran plain = run(pack + file("plain"));
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("from 2 sources"));
  std::vector<Json> said;
  for (const char* options : {" --shuffle-seed 5 --threads 1", " --shuffle-seed 5 --threads 3", " --shuffle-seed 6"}) {
    const std::string out = file("set" + std::to_string(said.size()));
    const Ran shuffled = run(pack + out + options);
    ASSERT_EQ(shuffled.code, 0) << shuffled.err;
    said.push_back(parse_json(run("data inspect --json " + out).out, "stdout"));
    EXPECT_EQ(said.back()["documents"], 300);
    EXPECT_EQ(said.back()["sources"]["Pile-CC"]["documents"], 100);
    EXPECT_EQ(said.back()["sources"]["ArXiv"]["documents"], 100);
  }
  EXPECT_EQ(said[0]["hash"], said[1]["hash"]);
  EXPECT_NE(said[0]["hash"], said[2]["hash"]);
  EXPECT_THAT(run("data inspect " + file("plain")).out,
              AllOf(HasSubstr("'Pile-CC': "), HasSubstr("tokens in 100 documents"), HasSubstr("without a source: ")));
}

TEST_F(Data, WrongUsageExitsWithTwo) {
  const std::string a = write("a.txt", "hello");
  expect_no_set("", 2, "files");
  expect_no_set(a + "--nonsense", 2, "--nonsense");
  expect_no_set(a + "--format csv", 2, "'csv'");
  expect_no_set(a + "--threads -1", 2, "--threads");
  expect_no_set(a + "--shuffle-seed -2", 2, "--shuffle-seed");
  EXPECT_EQ(run("data pack " + a + "--tokenizer bytes --shard-tokens 0 --out " + file("set")).code, 2);
  EXPECT_EQ(run("data pack " + a + "--out " + file("set")).code, 2) << "no tokenizer";
  EXPECT_EQ(run("data").code, 2);
}

TEST_F(Data, AnOptionGivenTwiceTakesTheLastValue) {
  const std::string a = write("a.txt", "hello");
  EXPECT_EQ(run("data pack " + a + "--tokenizer bytes --out " + file("first") + " --out " + file("last")).code, 0);
  EXPECT_FALSE(std::filesystem::exists(file("first")));
  EXPECT_TRUE(std::filesystem::exists(file("last")));
}

TEST_F(Data, WhereTextIsBadTheLineIsNamedAndNothingIsLeft) {
  std::string many;
  for (int i = 0; i < 50; ++i) many += "{\"text\":\"some words of a document\"}\n";
  const std::string good = write("good.jsonl", many);  // several shards are written before the bad file is read
  expect_no_set(good + write("bad.jsonl", "{\"text\":\"x\"}\n{\"txt\":\"x\"}\n"), 1,
                "bad.jsonl:2: needs an object with the text in 'text'");
  expect_no_set(good + write("bad.fa", ">x\nAC1\n"), 1, "bad.fa:2: '1' is no letter");
  const std::string zst = compressed(many);
  expect_no_set(good + write("cut.jsonl.zst", zst.substr(0, zst.size() - 9)), 1, "cut.jsonl.zst: cut off");
  expect_no_set(good + file("none.txt"), 1, "none.txt: No such file or directory");
  expect_no_set(good + write("table.csv", "x"), 1, "table.csv: the name does not tell the format");
  expect_no_set(write("empty.txt", ""), 1, "nothing to write: there were no documents");
  EXPECT_THAT(run("data pack " + good + "--tokenizer bytes --out " + file("good.jsonl")).err, HasSubstr("cannot make the folder"));
  EXPECT_EQ(run("data pack " + good + "--tokenizer bytes --out " + file("set")).code, 0) << "and the folder is free for the next try";
  const Ran again = run("data pack " + good + "--tokenizer bytes --out " + file("set"));
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("--out " + file("set") + ": holds token shards (00000.tokens); name another folder"));
  EXPECT_EQ(run("data inspect " + file("set")).code, 0) << "and is not touched";
}

TEST_F(Data, AFullDiskLeavesNothing) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += "{\"text\":\"" + std::string(4000, 'x') + "\"}\n";
  text += "{\"text\":\"" + std::string(100'000, 'x') + "\"}\n";  // there is no room for the last shard
  for (const char* options : {"--threads 1", "--threads 2"})
    expect_no_set(write("a.jsonl", text) + options, 1, "cannot write: File too large", "ulimit -f 64; ");
  expect_no_set(write("a.jsonl", text) + "--shuffle-seed 1", 1, "set: cannot write a temporary file: File too large", "ulimit -f 64; ");
}

// Sends the signal once after some shards have been written, and once before the first, while the program waits for a pipe.
TEST_F(Data, InterruptedItLeavesNothing) {
  for (const auto& [waiting, threads] : {std::pair<bool, std::string>(false, "1"), {false, "3"}, {true, "1"}, {true, "3"}}) {
    std::filesystem::remove(file("pipe.jsonl"));
    ASSERT_EQ(mkfifo(file("pipe.jsonl").c_str(), 0600), 0);
    const Started pack(
        {"data", "pack", file("pipe.jsonl"), "--tokenizer", "bytes", "--shard-tokens", "8", "--threads", threads, "--out", file("set")},
        file("out"), file("err"));
    std::ofstream pipe(file("pipe.jsonl"));
    for (int i = 0; i < (waiting ? 2 : 5000); ++i) pipe << "{\"text\":\"some words of a document\"}\n";
    pipe.flush();
    while (!std::filesystem::exists(file(waiting ? "set" : "set/00001.tokens"))) usleep(1000);
    pack.signal(SIGINT);
    pipe.close();  // in case the signal came just before the read: the text after it is not packed
    const int status = pack.status();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    EXPECT_THAT(read_file(file("err")), HasSubstr("interrupted"));
    EXPECT_FALSE(std::filesystem::exists(file("set")));
  }
}

// The first process has written some shards and waits for a pipe. The second must fail at once and must not remove these shards.
TEST_F(Data, ASecondPackFailsAtOnceAndTouchesNothing) {
  ASSERT_EQ(mkfifo(file("pipe.jsonl").c_str(), 0600), 0);
  const std::string options = "--tokenizer bytes --shard-tokens 8 --out " + file("set");
  const Started first({"data", "pack", file("pipe.jsonl"), "--tokenizer", "bytes", "--shard-tokens", "8", "--out", file("set")},
                      file("out"), file("err"));
  std::ofstream pipe(file("pipe.jsonl"));
  for (int i = 0; i < 100; ++i) pipe << "{\"text\":\"" << std::string(4000, 'x') << "\"}\n";  // more than one read returns
  pipe.flush();
  while (!std::filesystem::exists(file("set/00001.tokens"))) usleep(1000);
  for (const std::string& text : {write("good.txt", "x"), write("bad.fa", ">x\nAC1\n")}) {
    const Ran second = run("data pack " + text + options);
    EXPECT_EQ(second.code, 1);
    EXPECT_THAT(second.err, AllOf(HasSubstr("set: another run is writing to this folder (process "), HasSubstr("wait for it")));
  }
  pipe.close();
  EXPECT_EQ(first.status(), 0) << read_file(file("err"));
  EXPECT_EQ(run("data inspect " + file("set")).code, 0);
  EXPECT_FALSE(std::filesystem::exists(file("set/.lock")));
}

// A process that has written nothing yet holds the folder's lock, too: the second must not use the folder.
TEST_F(Data, APackThatHasWrittenNothingYetHoldsItsFolder) {
  ASSERT_EQ(mkfifo(file("pipe.txt").c_str(), 0600), 0);
  const Started first({"data", "pack", file("pipe.txt"), "--tokenizer", "bytes", "--out", file("set")}, file("out"), file("err"));
  std::ofstream pipe(file("pipe.txt"));
  while (!std::filesystem::exists(file("set"))) usleep(1000);
  const std::string second = "data pack " + write("a.txt", "the second") + "--tokenizer bytes --out " + file("set");
  EXPECT_EQ(run(second).code, 1);
  pipe << "the first";
  pipe.close();
  EXPECT_EQ(first.status(), 0) << read_file(file("err"));
  EXPECT_THAT(run("data inspect " + file("set")).out, HasSubstr("10 tokens in 1 documents"));
}

// A good shard, damaged in one place at a time.
TEST_F(Data, ADamagedSetIsNamedByFileAndByte) {
  ASSERT_EQ(run("data pack " + write("a.txt", "hello world") + "--tokenizer bytes --out " + file("set")).code, 0);
  const std::string shard = file("set/00000.tokens"), whole = read_file(shard);
  const auto inspect = [&](const std::string& bytes, const std::string& options = "") {
    write_file_atomic(shard, bytes);
    const Ran ran = run("data inspect " + options + file("set"));
    EXPECT_EQ(ran.code, 1);
    EXPECT_THAT(ran.out, IsEmpty());
    return ran.err;
  };
  EXPECT_THAT(inspect("NOTBASED" + whole.substr(8)), HasSubstr(shard + ": byte 0: no token shard"));
  EXPECT_THAT(inspect(whole.substr(0, 80)), HasSubstr(shard + ": byte 80: cut off"));
  EXPECT_THAT(inspect(whole.substr(0, 20)), HasSubstr(shard + ": byte 20: cut off inside the header"));
  std::string changed = whole;
  changed[72] = 'j';
  EXPECT_THAT(inspect(changed), HasSubstr(shard + ": byte 48: the tokens are damaged"));
  const uint16_t outside = 257;  // with matching checksums
  std::memcpy(changed.data() + 74, &outside, sizeof outside);
  const uint64_t content = xxh3_64(std::as_bytes(std::span(changed)).subspan(72));
  std::memcpy(changed.data() + 48, &content, sizeof content);
  const uint64_t header = xxh3_64(std::as_bytes(std::span(changed)).first(64));
  std::memcpy(changed.data() + 64, &header, sizeof header);
  EXPECT_THAT(inspect(changed), HasSubstr(shard + ": byte 74: token id 257 is outside the vocabulary of 257 tokens"));
  ASSERT_EQ(run("tokenize train " + file("a.txt") + " --vocab-size 256 --out " + file("bpe")).code, 0);
  EXPECT_THAT(inspect(whole, "--tokenizer " + file("bpe") + " "),
              HasSubstr(shard + ": byte 40: packed with another tokenizer (257 tokens"));
  EXPECT_EQ(run("data inspect " + file("nowhere")).code, 1);
  std::filesystem::remove(shard);
  EXPECT_THAT(run("data inspect " + file("set")).err, HasSubstr("no token shards"));
}

}  // namespace data_test
}  // namespace based
