#include "based/models/vocabulary_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/models/config.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace vocabulary_size_test {

using testing::HasSubstr;
using testing::StartsWith;

TEST(VocabularySize, IsTheSourcesAndNoOther) {
  Config none{Config::Table{}};
  set_vocabulary_size(none, 64, "the task");
  EXPECT_EQ(std::get<int64_t>(none.find("vocab_size")->value()), 64);

  Config same = Config::parse_toml("d_model = 8\nvocab_size = 64", "run.toml");
  set_vocabulary_size(same, 64, "the task");
  EXPECT_EQ(std::get<int64_t>(same.find("vocab_size")->value()), 64);

  for (const char* other : {"100", "63", "\"64\"", "[64, 128]", "64.0"}) {
    Config model = Config::parse_toml(std::string("d_model = 8\nvocab_size = ") + other, "run.toml");
    const std::string said = message_of<UsageError>([&] { set_vocabulary_size(model, 64, "the task"); });
    EXPECT_THAT(said, StartsWith("run.toml:2: model.vocab_size is ")) << other;
    EXPECT_THAT(said, HasSubstr("but the task has 64 tokens: leave the key out, or give that number")) << other;
  }
}

TEST(VocabularySize, OfAPresetGivesWay) {
  Config model = Config::parse_toml("preset = \"based-tiny\"", "run.toml");
  set_vocabulary_size(model, 300, "the tokenizer");
  EXPECT_EQ(read_model_config(model).vocab_size, 300);
}

}  // namespace vocabulary_size_test
}  // namespace based
