#include "based/core/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace output_folder_test {

using testing::HasSubstr;

const OutputRule kTokenizerRule{"--out", {tokenizer_holding()}, {model_holding(), checkpoints_holding()}, true};

std::string refusal(const std::string& folder, const OutputRule& rule, bool overwrite) {
  return message_of<UsageError>([&] { require_free(folder, rule, overwrite); });
}

TEST(OutputFolder, WhatIsThereIsNamedWithTheRemedy) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  EXPECT_EQ(refusal(out, kTokenizerRule, false), "") << "there is nothing yet";
  write_file_atomic(folder.file("notes.txt"), "x");
  EXPECT_EQ(refusal(folder.path().string(), kTokenizerRule, false), "") << "other files are nobody's concern";
  std::filesystem::create_directory(out);
  write_file_atomic(out + "/merges.txt", "x");
  EXPECT_EQ(refusal(out, kTokenizerRule, false),
            "--out " + out + ": holds a tokenizer (merges.txt); --overwrite replaces that, another --out keeps it");
  EXPECT_EQ(refusal(out, kTokenizerRule, true), "");
  write_file_atomic(out + "/config.json", "x");
  for (const bool overwrite : {false, true})
    EXPECT_EQ(refusal(out, kTokenizerRule, overwrite),
              "--out " + out +
                  ": holds a tokenizer (merges.txt) and a model (config.json); this command does not replace that: name another folder");
}

TEST(OutputFolder, EndsOfNamesAndCommandsWithoutOverwrite) {
  const TemporaryFolder folder;
  const OutputRule rule{"--out", {shards_holding()}, {}, false};
  write_file_atomic(folder.file("tokens"), "x");
  EXPECT_EQ(refusal(folder.path(), rule, false), "");
  write_file_atomic(folder.file("00000.tokens"), "x");
  EXPECT_EQ(refusal(folder.path(), rule, false),
            "--out " + folder.path().string() + ": holds token shards (00000.tokens); name another folder, or remove it first");
}

TEST(OutputFolder, WhatACommandThatFailedHasWrittenGoes) {
  const TemporaryFolder folder;
  const std::string out = folder.file("out");
  {
    OutputFolder writing(out, kTokenizerRule, false);
    write_file_atomic(out + "/vocab.json", "half");
  }
  EXPECT_FALSE(std::filesystem::exists(out)) << "with the folder that was made for it";
  std::filesystem::create_directory(out);
  write_file_atomic(out + "/notes.txt", "x");
  {
    OutputFolder writing(out, kTokenizerRule, false);
    write_file_atomic(out + "/vocab.json", "half");
  }
  EXPECT_FALSE(std::filesystem::exists(out + "/vocab.json"));
  EXPECT_TRUE(std::filesystem::exists(out + "/notes.txt"));
  {
    OutputFolder writing(out, kTokenizerRule, false);
    write_file_atomic(out + "/vocab.json", "whole");
    writing.keep();
  }
  EXPECT_EQ(read_file(out + "/vocab.json"), "whole");
  { const OutputFolder failing(out, kTokenizerRule, true); }
  EXPECT_EQ(read_file(out + "/vocab.json"), "whole") << "what was to be replaced stays where the command fails";
}

TEST(OutputFolder, BelongsToOneCommandAtATime) {
  const TemporaryFolder folder;
  const OutputFolder first(folder.file("out"), kTokenizerRule, false);
  EXPECT_THAT(message_of<Error>([&] { OutputFolder(folder.file("out"), kTokenizerRule, false); }),
              HasSubstr("another run is writing to this folder"));
}

TEST(OutputFolder, CannotBeMadeBelowAFile) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("file"), "x");
  EXPECT_EQ(message_of<Error>([&] { OutputFolder(folder.file("file/out"), kTokenizerRule, false); }),
            folder.file("file/out") + ": cannot make the folder: Not a directory");
}

}  // namespace output_folder_test
}  // namespace based
