#include "based/data/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "based/core/files.h"
#include "based/core/json.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace vocabulary_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A vocab.json with the 256 bytes and additional entries.
Json bytes_and(const std::vector<std::pair<std::string, Json>>& more = {}) {
  Json vocab = Json::object();
  int id = 0;
  for (const unsigned char byte : byte_alphabet()) vocab[token_name(std::string(1, static_cast<char>(byte)))] = id++;
  for (const auto& [name, value] : more) vocab[name] = value;
  return vocab;
}

Vocabulary parse(const Json& vocab, const std::string& merges = "#version: 0.2\n") {
  return parse_vocab_and_merges(dump_json(vocab), "vocab.json", merges, "merges.txt");
}

std::string refusal(const Json& vocab, const std::string& merges = "#version: 0.2\n") {
  return message_of<Error>([&] { parse(vocab, merges); });
}

TEST(Vocabulary, ReadsTokensMergesAndSpecials) {
  const Vocabulary v = parse(bytes_and({{"Ġt", 256}, {"Ġth", 257}, {"<|endoftext|>", 258}, {"<two words ☃>", 259}}), "Ġ t\nĠt h\n");
  EXPECT_EQ(v.tokens[256], " t");
  EXPECT_EQ(v.tokens[257], " th");
  ASSERT_EQ(v.merges.size(), 2u);
  EXPECT_EQ(v.merges[1].left, 256);
  EXPECT_EQ(v.specials, (std::vector<int32_t>{258, 259}));
  EXPECT_EQ(v.tokens[259], "<two words ☃>");
}

TEST(Vocabulary, AllBytesHaveANameAndBack) {
  EXPECT_EQ(token_name(" \n!\xad"), "ĠĊ!Ń");
  EXPECT_EQ(byte_alphabet().size(), 256u);
  EXPECT_EQ(byte_alphabet().front(), '!');
}

TEST(Vocabulary, RefusesBadIds) {
  EXPECT_EQ(refusal(bytes_and({{"aa", -1}}), "a a\n"), "vocab.json: token 'aa': id -1 is negative");
  EXPECT_EQ(refusal(bytes_and({{"aa", 5}}), "a a\n"), "vocab.json: token 'aa': id 5 is already the id of '&'");
  EXPECT_THAT(refusal(bytes_and({{"aa", 257}}), "a a\n"), HasSubstr("'aa': id 257 leaves a gap: 257 tokens must have the ids 0 to 256"));
  for (const Json& id : {Json(1.5), Json("3"), Json(nullptr), Json(2147483648u), Json(18446744073709551615u), Json(true)}) {
    EXPECT_THAT(refusal(bytes_and({{"aa", id}})), HasSubstr("token 'aa': the id must be an integer from 0 to 2147483647"));
  }
  EXPECT_THAT(refusal(Json::array({1})), HasSubstr("vocab.json: must be an object"));
  EXPECT_THAT(refusal(Json::object()), HasSubstr("vocab.json: no tokens"));
  EXPECT_THAT(refusal(bytes_and({{"", 256}})), HasSubstr("id 256: the token is empty"));
  EXPECT_THAT(refusal(bytes_and({{std::string(70000, 'a'), 256}})), HasSubstr("longer than 65536 bytes"));
  Json gone = bytes_and();
  gone.erase(token_name("\x7f"));
  gone["xx"] = 256 - 256 + 0;
  EXPECT_NE(refusal(gone), "");
  const std::string twice = "{\"a\":0,\"a\":1}";
  EXPECT_THAT(message_of<Error>([&] { parse_vocab_and_merges(twice, "vocab.json", "", "m"); }), HasSubstr("duplicate key 'a'"));
}

TEST(Vocabulary, RefusesAByteWithoutAToken) {
  Json vocab = Json::object();
  int id = 0;
  for (const unsigned char byte : byte_alphabet()) {
    if (byte != ' ') vocab[token_name(std::string(1, static_cast<char>(byte)))] = id++;
  }
  EXPECT_THAT(refusal(vocab), HasSubstr("vocab.json: byte 32 has no token (its name would be Ġ)"));
}

TEST(Vocabulary, RefusesBadMerges) {
  const Json vocab = bytes_and({{"aa", 256}, {"<s>", 257}});
  EXPECT_THAT(refusal(vocab, "#version: 0.2\na a\na b\n"), StartsWith("merges.txt:3: 'a b': 'ab' is not a token of vocab.json"));
  EXPECT_THAT(refusal(vocab, "qq a\n"), StartsWith("merges.txt:1: 'qq a': 'qq' is not a token of vocab.json"));
  EXPECT_THAT(refusal(vocab, "a a\na a\n"), StartsWith("merges.txt:2: 'a a': the merge was given before, as number 1"));
  EXPECT_THAT(refusal(vocab, "a \n"), StartsWith("merges.txt:1: 'a ': one side of the merge is empty"));
  EXPECT_THAT(refusal(vocab, " a\n"), StartsWith("merges.txt:1: ' a': one side of the merge is empty"));
  for (const std::string line : {"aa", "a a a", "", "a  a"}) {
    EXPECT_THAT(refusal(vocab, "a a\n" + line + "\n"), StartsWith("merges.txt:2: '" + line + "': a merge is two tokens"));
  }
  EXPECT_THAT(refusal(vocab, "a a\r\n"), HasSubstr("'a\\x0d' is not a token"));
}

// Otherwise a truncated list of merges would turn the later tokens into special ones, which would change the ids of every text.
TEST(Vocabulary, RefusesMergesThatAreCutOff) {
  const Json vocab = bytes_and({{"ab", 256}, {"Ġab", 257}, {"abab", 258}, {"<|endoftext|>", 259}});
  const std::string merges = "#version: 0.2\na b\nĠ ab\nab ab\n";
  EXPECT_EQ(parse(vocab, merges).specials, (std::vector<int32_t>{259}));
  EXPECT_EQ(parse(vocab, merges.substr(0, merges.size() - 1)).merges.size(), 3u) << "without the last line feed";
  for (size_t size = 0; size + 1 < merges.size(); ++size) {
    EXPECT_THAT(refusal(vocab, merges.substr(0, size)), ::testing::AnyOf(StartsWith("merges.txt:"), StartsWith("vocab.json: token")))
        << size;
  }
  EXPECT_EQ(refusal(vocab, "a b\nĠ ab\n"),
            "vocab.json: token 'abab': no merge makes it, although the tokens 'ab' and 'ab' spell it; is the list of merges cut off? (a "
            "special token like this one needs a tokenizer.json)");
}

Json tokenizer_json() {
  Json root = parse_json(R"({"version":"1.0","added_tokens":[{"id":257,"content":"<|endoftext|>","single_word":false,"lstrip":false,
    "rstrip":false,"normalized":true,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
    "post_processor":null,"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{},"merges":[["a","a"]]}})",
                         "here");
  root["model"]["vocab"] = bytes_and({{"aa", 256}});
  return root;
}

TEST(TokenizerJson, ReadsBothFormsOfMergesAndTokensThatAreOnlyAdded) {
  Json root = tokenizer_json();
  const Vocabulary lists = parse_tokenizer_json(dump_json(root), "t");
  root["model"]["merges"] = Json::array({"a a"});
  const Vocabulary texts = parse_tokenizer_json(dump_json(root), "t");
  EXPECT_EQ(lists.tokens, texts.tokens);
  EXPECT_EQ(lists.merges.size(), texts.merges.size());
  EXPECT_EQ(lists.specials, (std::vector<int32_t>{257}));
  EXPECT_EQ(lists.tokens[257], "<|endoftext|>");
}

TEST(TokenizerJson, RefusesSettingsThatWouldChangeTheIds) {
  const auto refused = [](const std::function<void(Json&)>& change) {
    Json root = tokenizer_json();
    change(root);
    return message_of<Error>([&] { parse_tokenizer_json(dump_json(root), "tokenizer.json"); });
  };
  EXPECT_THAT(refused([](Json& j) { j["normalizer"] = {{"type", "NFKC"}}; }), StartsWith("tokenizer.json: normalizer:"));
  EXPECT_THAT(refused([](Json& j) {
                j["normalizer"] = {{"type", "NFC"}};
              }),
              HasSubstr("added_tokens[0].normalized: must be false for special tokens"));
  EXPECT_THAT(refused([](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }), HasSubstr("pre_tokenizer.add_prefix_space"));
  EXPECT_THAT(refused([](Json& j) { j["pre_tokenizer"] = nullptr; }), HasSubstr("pre_tokenizer: must be an object"));
  EXPECT_THAT(refused([](Json& j) { j["pre_tokenizer"]["type"] = "Metaspace"; }), HasSubstr("pre_tokenizer.type"));
  EXPECT_THAT(refused([](Json& j) { j["post_processor"] = {{"type", "TemplateProcessing"}}; }), HasSubstr("post_processor.type"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["type"] = "Unigram"; }), HasSubstr("model.type"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["dropout"] = 0.1; }), HasSubstr("model.dropout"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["unk_token"] = "<unk>"; }), HasSubstr("model.unk_token"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["byte_fallback"] = true; }), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["ignore_merges"] = true; }), HasSubstr("model.ignore_merges"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][0]["special"] = 1; }), HasSubstr("added_tokens[0].special: '1' is not supported"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][0]["lstrip"] = true; }), HasSubstr("added_tokens[0].lstrip"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][0]["id"] = 3; }), HasSubstr("id 3 is already the id of '$'"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][0].erase("id"); }), HasSubstr("added_tokens[0]: must be an object"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][0]["id"] = -1; }), HasSubstr("token '<|endoftext|>': id -1 is negative"));
  for (const Json& id : {Json(2147483648u), Json(18446744073709551615u), Json(1.5)}) {
    EXPECT_THAT(refused([&](Json& j) { j["added_tokens"][0]["id"] = id; }), HasSubstr("added_tokens[0]: must be an object")) << id;
  }
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"][0] = Json::array({"a"}); }), HasSubstr("model.merges[0]"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"].push_back(Json::array({"a", "q"})); }), HasSubstr("model.merges[1]"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"]["zz"] = 258; }), HasSubstr("no merge makes it"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"]["a☃"] = 258; }), HasSubstr("stands for no byte"));
  EXPECT_THAT(refused([](Json& j) { j.erase("model"); }), HasSubstr("model: must be an object"));
  EXPECT_THAT(refused([](Json& j) { j["model"].erase("merges"); }), HasSubstr("model: needs"));
  EXPECT_THAT(refused([](Json& j) { j = Json::array(); }), HasSubstr("must be an object"));
}

// A tokenizer in the form of GPT-NeoX-20b's: normalization to form C, runs of spaces as tokens that are not special, no tokens for bytes
// outside UTF-8.
Json neox_json() {
  Json root = tokenizer_json();
  root["normalizer"] = {{"type", "NFC"}};
  root["added_tokens"][0]["normalized"] = false;
  Json vocab = Json::object();
  int id = 0;
  for (const unsigned char byte : byte_alphabet())
    if (byte < 0xc0 || (byte >= 0xc2 && byte < 0xf5)) vocab[token_name(std::string(1, static_cast<char>(byte)))] = id++;
  vocab["aa"] = id++;
  root["model"]["vocab"] = vocab;
  root["added_tokens"][0]["id"] = id++;
  for (const char* spaces : {"   ", "  "})
    root["added_tokens"].push_back({{"id", id++}, {"content", spaces}, {"special", false}, {"normalized", true}});
  return root;
}

TEST(TokenizerJson, ReadsAddedTokensAndFormC) {
  const Vocabulary v = parse_tokenizer_json(dump_json(neox_json()), "t");
  EXPECT_TRUE(v.nfc);
  EXPECT_EQ(v.tokens.size(), 243u + 1 + 1 + 2);
  EXPECT_EQ(v.specials, (std::vector<int32_t>{244}));
  EXPECT_EQ(v.added, (std::vector<int32_t>{245, 246}));
  EXPECT_EQ(v.tokens[245], "   ");
}

TEST(TokenizerJson, RefusesAddedTokensThatWouldBeFoundElsewhere) {
  const auto refused = [](const std::function<void(Json&)>& change) {
    Json root = neox_json();
    change(root);
    return message_of<Error>([&] { parse_tokenizer_json(dump_json(root), "t"); });
  };
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][1]["normalized"] = false; }),
              StartsWith("t: added_tokens[1].normalized: must be false for special tokens and true for others"));
  EXPECT_THAT(refused([](Json& j) { j["added_tokens"][1]["content"] = "e\u0301"; }),
              StartsWith("t: added_tokens[1].content: must be in Unicode's form C"));
  EXPECT_THAT(refused([](Json& j) {
                j["added_tokens"][1] = {{"id", 243}, {"content", "aa"}, {"special", false}, {"normalized", true}};
              }),
              HasSubstr("token 'aa': is in model.vocab and in added_tokens, but is not special"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["merges"].push_back(Json::array({"  ", "a"})); }), HasSubstr("'  ' is an added token"));
  EXPECT_THAT(refused([](Json& j) { j["model"]["vocab"].erase(token_name("\xf4")); }), HasSubstr("leaves a gap"));
}

TEST(TokenizerJson, WritesAddedTokensAndFormCToOneFile) {
  const TemporaryFolder folder;
  const Vocabulary v = parse_tokenizer_json(dump_json(neox_json()), "t");
  write_vocabulary(v, folder.path());
  EXPECT_FALSE(path_exists(folder.path() / "vocab.json"));  // which would lose them
  const Vocabulary again = read_vocabulary(folder.path());
  EXPECT_EQ(again.tokens, v.tokens);
  EXPECT_EQ(again.specials, v.specials);
  EXPECT_EQ(again.added, v.added);
  EXPECT_TRUE(again.nfc);
}

struct BadSetting {
  std::string name;
  std::function<void(Json&)> change;
  std::string remedy;
};

// Each setting gives other ids in the tokenizers library, or is unknown there too.
std::vector<BadSetting> bad_settings() {
  const auto add = [](Json& root, int id, const char* content, const char* key, const Json& value) {
    Json token{{"id", id}, {"content", content}, {"special", true}, {"normalized", true}};
    token[key] = value;
    root["added_tokens"].push_back(token);
  };
  return {
      {"truncation",
       [](Json& j) {
         j["truncation"] = {{"direction", "Right"}, {"max_length", 4}, {"strategy", "LongestFirst"}, {"stride", 0}};
       },
       "set it to null"},
      {"padding",
       [](Json& j) {
         j["padding"] = {{"strategy", {{"Fixed", 30}}}, {"pad_id", 0}};
       },
       "set it to null"},
      {"padding",
       [](Json& j) {
         j["padding"] = {{"strategy", "BatchLongest"}, {"pad_to_multiple_of", 8}};
       },
       "set it to null"},
      {"version", [](Json& j) { j["version"] = "2.0"; }, "save the tokenizer"},
      {"normalizer",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}};
       },
       "normalize the texts"},
      {"pre_tokenizer.type",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array()}};
       },
       "train"},
      {"pre_tokenizer.type",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Isolated"}};
       },
       "train"},
      {"pre_tokenizer.type", [](Json& j) { j["pre_tokenizer"].erase("type"); }, "is missing"},
      {"pre_tokenizer.add_prefix_space", [](Json& j) { j["pre_tokenizer"].erase("add_prefix_space"); }, "is missing"},
      {"pre_tokenizer.use_regex", [](Json& j) { j["pre_tokenizer"]["use_regex"] = false; }, "train"},
      {"pre_tokenizer.individual_digits", [](Json& j) { j["pre_tokenizer"]["individual_digits"] = true; }, "remove it if"},
      {"post_processor.type",
       [](Json& j) {
         j["post_processor"] = {{"type", "RobertaProcessing"}};
       },
       "set it to null"},
      {"post_processor.type",
       [](Json& j) {
         j["post_processor"] = {{"type", "Sequence"}, {"processors", Json::array()}};
       },
       "set it to null"},
      {"post_processor", [](Json& j) { j["post_processor"] = "ByteLevel"; }, "must be an object"},
      {"decoder.type",
       [](Json& j) {
         j["decoder"] = {{"type", "Metaspace"}};
       },
       "tokens are the bytes"},
      {"model.continuing_subword_prefix", [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "convert"},
      {"model.end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "convert"},
      {"model.fuse_unk", [](Json& j) { j["model"]["fuse_unk"] = "yes"; }, "true or false"},
      {"model.max_input_chars_per_word", [](Json& j) { j["model"]["max_input_chars_per_word"] = 100; }, "remove it if"},
      {"split_special_tokens", [](Json& j) { j["split_special_tokens"] = true; }, "remove it if"},
      {"added_tokens[0].single_word", [](Json& j) { j["added_tokens"][0]["single_word"] = true; }, "set it to false"},
      {"added_tokens[0].rstrip", [](Json& j) { j["added_tokens"][0]["rstrip"] = 1; }, "set it to false"},
      {"added_tokens[0].special", [](Json& j) { j["added_tokens"][0].erase("special"); }, "is missing, it must be true or false"},
      {"added_tokens[0].normalised", [](Json& j) { j["added_tokens"][0]["normalised"] = true; }, "remove it if"},
      {"added_tokens[1].normalized", [add](Json& j) { add(j, 258, "<|x", "normalized", false); }, "set all to false"},
      {"added_tokens[2].id",
       [add](Json& j) {
         add(j, 259, "<b>", "lstrip", false);
         add(j, 258, "<a>", "lstrip", false);
       },
       "put them in order"},
  };
}

TEST(TokenizerJson, RefusesEverySettingThatItLacksByNameWithARemedy) {
  for (const auto& [name, change, remedy] : bad_settings()) {
    Json root = tokenizer_json();
    change(root);
    const std::string said = message_of<Error>([&] { parse_tokenizer_json(dump_json(root), "tokenizer.json"); });
    EXPECT_THAT(said, StartsWith("tokenizer.json: " + name + ": ")) << said;
    EXPECT_THAT(said, HasSubstr(remedy)) << name;
  }
}

// These settings change neither ids nor decoded text in the tokenizers library.
TEST(TokenizerJson, AcceptsSettingsWithoutConsequence) {
  const std::vector<std::function<void(Json&)>> changes{
      [](Json& j) { j["truncation"] = j["padding"] = nullptr; },
      [](Json& j) { j.erase("version"); },
      [](Json& j) { j["model"].erase("type"); },
      [](Json& j) { j["model"]["fuse_unk"] = true; },
      [](Json& j) { j["model"]["dropout"] = 0.0; },
      [](Json& j) { j["model"]["unk_token"] = j["model"]["end_of_word_suffix"] = j["model"]["continuing_subword_prefix"] = ""; },
      [](Json& j) {
        j["post_processor"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}};
      },
      [](Json& j) { j["decoder"] = nullptr; },
      [](Json& j) { j["added_tokens"][0]["normalized"] = false; },
  };
  const std::vector<std::string> tokens = parse_tokenizer_json(dump_json(tokenizer_json()), "t").tokens;
  for (size_t i = 0; i < changes.size(); ++i) {
    Json root = tokenizer_json();
    changes[i](root);
    EXPECT_EQ(parse_tokenizer_json(dump_json(root), "t").tokens, tokens) << i;
  }
}

TEST(TokenizerJson, TruncatedAnywhereIsAnError) {
  const std::string text = dump_json(tokenizer_json());
  for (size_t size = 0; size < text.size(); ++size) {
    const std::string cut(text.data(), size);
    EXPECT_THAT(message_of<Error>([&] { parse_tokenizer_json(cut, "t.json"); }), StartsWith("t.json: ")) << size;
  }
}

TEST(Vocabulary, AFolderWithoutATokenizerSaysWhatIsMissing) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of<Error>([&] { read_vocabulary(folder.path()); }), HasSubstr("neither tokenizer.json nor vocab.json"));
  ASSERT_EQ(::mkfifo(folder.file("tokenizer.json").c_str(), 0600), 0);
  EXPECT_THAT(message_of<Error>([&] { read_vocabulary(folder.path()); }), HasSubstr("tokenizer.json: not a regular file"));
  std::filesystem::remove(folder.file("tokenizer.json"));
  write_file_atomic(folder.file("vocab.json"), dump_json(bytes_and()));
  EXPECT_THAT(message_of<Error>([&] { read_vocabulary(folder.path()); }), HasSubstr("merges.txt"));
}

}  // namespace vocabulary_test
}  // namespace based
