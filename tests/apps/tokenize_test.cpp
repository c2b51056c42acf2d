// `based tokenize` from the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace tokenize_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Tokenize : public testing::Test {
 protected:
  Tokenize() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "the cat number " + std::to_string(i * 37 % 101) + " sat on the other cat's mat\n";
    write_file_atomic(file("book.txt"), text);
  }
  std::string file(const std::string& name) const { return folder_.file(name); }
  // A tokenizer of 300 tokens, <|endoftext|> first.
  std::string trained() {
    const Ran ran = run("tokenize train " + file("book.txt") + " --vocab-size 300 --special '<|endoftext|>' --out " + file("bpe"));
    EXPECT_EQ(ran.code, 0) << ran.err;
    return file("bpe");
  }
  void expect_refused(const std::string& arguments, int code, const std::vector<std::string>& says) {
    const Ran ran = run("tokenize " + arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.err;
    EXPECT_THAT(ran.out, IsEmpty()) << arguments;
    for (const std::string& text : says) EXPECT_THAT(ran.err, HasSubstr(text)) << arguments;
  }
  TemporaryFolder folder_;
};

TEST_F(Tokenize, WhatIsTrainedEncodesAndDecodesAnyBytes) {
  const std::string bpe = trained();
  const std::string lines = "{\"text\":\"the cat\\ncaf\xc3\xa9 <|endoftext|>\"}\n{\"text\":\"\"}\n{\"bytes\":[255,0,116,104]}\n";
  write_file_atomic(file("in.jsonl"), lines);
  const Ran encoded = run("tokenize encode --tokenizer " + bpe + " " + file("in.jsonl"));
  EXPECT_EQ(encoded.code, 0) << encoded.err;
  EXPECT_THAT(encoded.err, IsEmpty());
  EXPECT_EQ(run("tokenize encode --tokenizer " + bpe + " <" + file("in.jsonl")).out, encoded.out) << "from standard input";
  write_file_atomic(file("ids.jsonl"), encoded.out);
  EXPECT_EQ(run("tokenize decode --tokenizer " + bpe + " " + file("ids.jsonl")).out, lines);
  const Ran special = run("tokenize encode --special --tokenizer " + bpe + " " + file("in.jsonl"));
  EXPECT_THAT(special.out.substr(0, special.out.find('\n')), testing::EndsWith(",0]}")) << "<|endoftext|> has the first id";
  EXPECT_NE(special.out, encoded.out);
}

TEST_F(Tokenize, TrainSaysWhatItMadeAndWhereTextRunsOut) {
  const Ran ran = run("tokenize train " + file("book.txt") + " --vocab-size 9000 --json --out " + file("bpe"));
  EXPECT_EQ(ran.code, 0);
  const Json made = parse_json(ran.out, "stdout");
  EXPECT_EQ(made["documents"], 1);
  EXPECT_EQ(made["bytes"], read_file(file("book.txt")).size());
  EXPECT_LT(made["tokens"].get<int64_t>(), 9000);
  EXPECT_THAT(ran.err, HasSubstr("fewer tokens than the 9000 asked for"));
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.json"}) EXPECT_TRUE(std::filesystem::exists(file("bpe") + "/" + name));
}

TEST_F(Tokenize, InspectTellsSizeSpecialsHashAndBytes) {
  const std::string bpe = trained();
  const Json said = parse_json(run("tokenize inspect --json --id 0 --id 1 --tokenizer " + bpe).out, "stdout");
  EXPECT_EQ(said["tokens"], 300);
  EXPECT_EQ(said["merges"], 300 - 256 - 1);
  EXPECT_EQ(said["specials"]["<|endoftext|>"], 0);
  EXPECT_EQ(said["ids"]["1"], "'!'");
  EXPECT_THAT(run("tokenize inspect --tokenizer " + bpe).out, HasSubstr(said["hash"].get<std::string>()));
  EXPECT_THAT(run("tokenize inspect --tokenizer bytes").out, HasSubstr("257 tokens, 0 merges"));
}

TEST_F(Tokenize, WrongUsageExitsWithTwo) {
  const std::string book = file("book.txt"), out = " --out " + file("x");
  expect_refused("", 2, {});
  expect_refused("train" + out, 2, {"files"});
  expect_refused("train " + book, 2, {"--out"});
  expect_refused("train " + book + out + " --nonsense", 2, {"--nonsense"});
  expect_refused("train " + book + out + " --vocab-size 255", 2, {"vocab_size", "255"});
  expect_refused("train " + book + out + " --vocab-size many", 2, {"--vocab-size"});
  expect_refused("train " + book + out + " --min-frequency 0", 2, {"min_frequency"});
  expect_refused("train " + book + out + " --special x", 2, {"'x'"});
  expect_refused("train " + book + out + " --special \u00a7", 2, {"specials: '\\xc2\\xa7' is the name"});
  expect_refused("train " + book + out + " --format csv", 2, {"'csv'"});
  expect_refused("encode", 2, {"--tokenizer"});
  expect_refused("decode --tokenizer bytes --special", 2, {"--special"});
  expect_refused("inspect --tokenizer bytes --id 257", 2, {"--id must be from 0 to 256, got 257"});
  EXPECT_FALSE(std::filesystem::exists(file("x")));
}

TEST_F(Tokenize, FailuresExitWithOneAndNameFileAndPlace) {
  const std::string book = file("book.txt"), out = " --out " + file("x"), bpe = trained();
  write_file_atomic(file("bad.jsonl"), "{\"text\":\"a\"}\n{\"text\":3}\n");
  write_file_atomic(file("ids.jsonl"), "{\"ids\":[97,257]}\n");
  write_file_atomic(file("cut.txt.zst"), std::string("\x28\xb5\x2f\xfd\x04", 5));
  expect_refused("train " + file("none.txt") + out, 1, {"none.txt: No such file or directory"});
  expect_refused("train " + book + " " + file("bad.jsonl") + out, 1, {"bad.jsonl:2: "});
  expect_refused("train " + file("cut.txt.zst") + out, 1, {"cut.txt.zst: cut off"});
  expect_refused("train " + book + " --out " + book, 1, {"book.txt: cannot make the folder"});
  expect_refused("encode --tokenizer " + file("none"), 1, {file("none") + ": no tokenizer here"});
  expect_refused("encode --tokenizer " + book + "/bpe", 1, {book + "/bpe/tokenizer.json: cannot be looked for: Not a directory"});
  expect_refused("encode --tokenizer bytes " + file("none.jsonl"), 1, {"none.jsonl: cannot open: No such file or directory"});
  expect_refused("encode --tokenizer bytes " + folder_.path().string(), 1, {folder_.path().string()});
  expect_refused("decode --tokenizer bytes " + file("ids.jsonl"), 1, {"ids.jsonl:1: 'ids'[1] must be an integer from 0 to 256"});
  std::filesystem::remove(bpe + "/tokenizer.json");
  const std::string merges = read_file(bpe + "/merges.txt");
  write_file_atomic(bpe + "/merges.txt", merges.substr(0, merges.rfind('\n', merges.size() / 2) + 1));
  expect_refused("inspect --tokenizer " + bpe, 1, {"vocab.json: token ", "is the list of merges cut off?"});
  write_file_atomic(bpe + "/vocab.json", "{\"a\":0,\"b\":0}");
  expect_refused("inspect --tokenizer " + bpe, 1, {"vocab.json: token 'b': id 0 is already the id of 'a'"});
  EXPECT_FALSE(std::filesystem::exists(file("x")));
}

TEST_F(Tokenize, LinesBeforeABadOneAreWritten) {
  write_file_atomic(file("bad.jsonl"), "{\"text\":\"a\"}\n{\"text\":3}\n");
  const Ran ran = run("tokenize encode --tokenizer bytes " + file("bad.jsonl"));
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out, "{\"ids\":[97]}\n");
  EXPECT_THAT(ran.err, HasSubstr("bad.jsonl:2: 'text' must be a string"));
}

// A model needs its own tokenizer: it is refused without one, and another one would give other text. So neither may be overwritten.
TEST_F(Tokenize, WhatIsThereIsKeptUnlessTold) {
  const std::string bpe = trained(), before = read_file(bpe + "/tokenizer.json"),
                    train = "tokenize train " + file("book.txt") + " --out " + bpe;
  const auto expect_kept = [&](const std::string& options, const std::string& says) {
    const Ran refused = run(train + " --vocab-size 290" + options);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.err, HasSubstr(says));
    EXPECT_EQ(read_file(bpe + "/tokenizer.json"), before);
  };
  expect_kept("", "--out " + bpe + ": holds a tokenizer (merges.txt); --overwrite replaces that, another --out keeps it");
  for (const std::string first : {"model.safetensors", "config.json"}) {
    write_file_atomic(bpe + "/" + first, "{}");
    for (const char* options : {"", " --overwrite"})
      expect_kept(options, "holds a tokenizer (merges.txt) and a model (" + first + "); this command does not replace that");
  }
  for (const char* name : {"model.safetensors", "config.json"}) std::filesystem::remove(bpe + "/" + name);
  EXPECT_EQ(run(train + " --vocab-size 290 --overwrite").code, 0);
  EXPECT_NE(read_file(bpe + "/tokenizer.json"), before);
}

TEST_F(Tokenize, AFullDiskLeavesTheFolderFreeForTheNextTry) {
  const std::string arguments = "tokenize train " + file("book.txt") + " --vocab-size 290 --out " + file("new");
  const Ran full = run(arguments, "ulimit -f 8; ");  // there is room for vocab.json, but not for tokenizer.json
  EXPECT_EQ(full.code, 1);
  EXPECT_THAT(full.err, HasSubstr("tokenizer.json: cannot write: File too large"));
  EXPECT_FALSE(std::filesystem::exists(file("new")));
  EXPECT_EQ(run(arguments).code, 0);
}

TEST_F(Tokenize, AFullDiskIsAnErrorAndTheOldTokenizerStays) {
  const std::string bpe = trained(), before = read_file(bpe + "/tokenizer.json");
  const std::string arguments = "tokenize train " + file("book.txt") + " --vocab-size 290 --overwrite --out " + bpe;
  const Ran train = run(arguments, "ulimit -f 1; ");  // blocks of 512 or 1024 bytes: vocab.json is larger
  EXPECT_EQ(train.code, 1);
  EXPECT_THAT(train.err, HasSubstr(bpe + "/vocab.json: cannot write: File too large"));
  EXPECT_EQ(read_file(bpe + "/tokenizer.json"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(bpe), std::filesystem::directory_iterator()), 3) << "no temporary left";

  write_file_atomic(file("in.jsonl"), "{\"text\":\"" + std::string(100'000, 'a') + "\"}\n");
  const Ran encode = run("tokenize encode --tokenizer bytes " + file("in.jsonl") + " >/dev/full");
  EXPECT_EQ(encode.code, 1);
  EXPECT_THAT(encode.err, HasSubstr("cannot be written"));
}

// The command has nothing to save, so it does not catch the signal.
TEST_F(Tokenize, InterruptedWhileItWaitsForInputItEndsAtOnce) {
  ASSERT_EQ(mkfifo(file("pipe").c_str(), 0600), 0);
  const Started encode({"tokenize", "encode", "--tokenizer", "bytes", file("pipe")}, file("out"), file("err"));
  const std::ofstream pipe(file("pipe"));  // blocks until the program opens the pipe
  encode.signal(SIGINT);
  const int status = encode.status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

}  // namespace tokenize_test
}  // namespace based
