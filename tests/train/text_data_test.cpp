#include "based/train/text_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/core/temporary_folder.h"

namespace based {
namespace text_data_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TextSets : public ::testing::Test {
 protected:
  TextSets() { config_.tokenizer = "bytes"; }
  std::string text(const std::string& name, const std::string& content) {
    std::ofstream(folder_.file(name)) << content;
    return folder_.file(name);
  }
  std::string packed(const std::string& name, const std::string& content, const Tokenizer& tokenizer = ByteTokenizer()) {
    pack_files({text(name + ".txt", content)}, "auto", tokenizer, folder_.file(name));
    return folder_.file(name);
  }
  std::string refusal() {
    return message_of<Error>([&] { load_text_data(config_, 8); });
  }
  TemporaryFolder folder_;
  TextDataConfig config_;
};

TEST_F(TextSets, ShareTheWindowsByTheirWeights) {
  config_ = read_config<TextDataConfig>(Config::parse_toml(R"(
tokenizer = "bytes"
[[sets]]
path = ")" + packed("a", std::string(200, 'a')) + R"("
weight = 3
[[sets]]
path = ")" + text("b.txt", std::string(100, 'b')) + R"(")",
                                                           "run.toml"));
  config_.valid = text("valid.txt", "some held-out text");
  const TextData data = load_text_data(config_, 8);
  EXPECT_EQ(training_paths(config_), folder_.file("a") + ", " + folder_.file("b.txt"));
  EXPECT_EQ(data.train->tokens(), 201 + 101);
  ASSERT_EQ(data.train->sets().size(), 2u);
  EXPECT_EQ(data.train->sets()[1].weight, 1);
  LoaderConfig loader_config;
  loader_config.length = 8;
  loader_config.batch = 16;
  const TokenBatch batch = Loader(data.train, loader_config).next();
  EXPECT_EQ(std::count(batch.tokens.begin(), batch.tokens.end(), 'b'), 4 * 8);
  const uint64_t hash = data.train->hash();
  config_.sets[0].weight = 2;
  EXPECT_NE(load_text_data(config_, 8).train->hash(), hash);
}

TEST_F(TextSets, OfOneTextAreThatText) {
  config_.train = text("a.txt", "a text of some length");
  config_.valid = text("valid.txt", "some held-out text");
  const uint64_t hash = load_text_data(config_, 8).train->hash();
  config_.sets = {{config_.train, 5}};
  config_.train = "";
  EXPECT_EQ(load_text_data(config_, 8).train->hash(), hash);
}

TEST_F(TextSets, AreRefusedIfTheyCannotBeUsed) {
  EXPECT_THAT(refusal(), HasSubstr("data must name either one text, data.train, or several"));
  config_.train = text("a.txt", "a text of some length");
  config_.sets = {{config_.train, 1}};
  EXPECT_THAT(refusal(), HasSubstr("data must name either one text"));
  config_.train = "";
  EXPECT_THAT(refusal(), HasSubstr("data.valid must name a held-out set"));
  config_.valid = text("valid.txt", "some held-out text");
  EXPECT_EQ(refusal(), "");
  config_.sets.push_back({folder_.file("none.txt"), 1});
  EXPECT_THAT(refusal(), HasSubstr("none.txt: no such file or folder; data.sets names it"));
  config_.sets.back() = {config_.valid, 0};
  EXPECT_THAT(refusal(), HasSubstr("data.sets: the weight of " + config_.valid + " must be a positive number"));
  config_.sets.back() = {text("short.txt", "short"), 1};
  EXPECT_THAT(refusal(), HasSubstr("short.txt: gives 6 tokens, too few for train.length = 8"));
  class Numbers final : public Tokenizer {
   public:
    Numbers() : Tokenizer(Vocabulary{std::vector<std::string>(300, "x"), {}, {}}) {}
    void encode_text(std::string_view, std::vector<int32_t>& ids) const override { ids = {1, 2}; }
  };
  config_.sets.back() = {packed("other", "x", Numbers()), 1};
  EXPECT_THAT(refusal(), AllOf(HasSubstr("other/00000.tokens: byte 40: packed with another tokenizer (300 tokens, hash "),
                               HasSubstr("than the one given (257 tokens, hash ")));
}

// The document that is cut where the held-out part begins has its source in both parts.
TEST_F(TextSets, KeepTheSourcesOfATextThatIsNotPacked) {
  config_.train = text("a.jsonl", R"({"text":"0123456789","meta":{"pile_set_name":"x"}}
{"text":"0123456789","meta":{"pile_set_name":"y"}}
{"text":"0123456789"}
)");
  for (const auto& [fraction, first, documents] : {std::tuple(0.5, 16, 2), std::tuple(1.0 / 3, 22, 1), std::tuple(0.34, 21, 2)}) {
    config_.valid_fraction = fraction;
    const TextData data = load_text_data(config_, 8);
    const TokenDataset& train = *data.train->sets().front().data;
    EXPECT_EQ(train.tokens(), first);
    EXPECT_EQ(train.documents(), 2);
    EXPECT_EQ(train.source_at(first - 1), 1);
    EXPECT_EQ(data.valid->documents(), documents);
    EXPECT_EQ(data.valid->source_at(0), documents == 2 ? 1 : -1);
    EXPECT_EQ(data.valid->source_at(data.valid->tokens() - 1), -1);
    EXPECT_THAT(data.valid->source_names(), ElementsAre("x", "y"));
  }
}

}  // namespace text_data_test
}  // namespace based
