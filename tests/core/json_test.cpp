#include "based/core/json_member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "based/core/json.h"
#include "temporary_folder.h"

namespace based {
namespace json_test {

using ::testing::StartsWith;

std::string error_of(const std::string& text) {
  return message_of<Error>([&] { parse_json(text, "in.json"); });
}

TEST(Json, ReadsWhatIsValid) {
  for (const char* text : {"null", "true", "-0", "1.5e300", "\"\\u00e9\\ud83d\\ude00\"", "[]", "{}",
                           R"({"z":[1,{"a":null}],"a":-3,"":"x"})", "18446744073709551615", "-9223372036854775808"}) {
    EXPECT_EQ(error_of(text), "") << text;
  }
  const char* text = R"({"z":[1,{"a":null}],"a":-3,"":"x\u0001","u":18446744073709551615})";
  EXPECT_EQ(dump_json(parse_json(text, "in.json")), text);
  EXPECT_EQ(parse_json(" \n[1 ,\t2] ", "in.json").size(), 2u);
}

// If read_only_member or read_members accepts a text, the parser must return the same values. They must reject every text that the parser
// rejects.
void expect_as_the_parser(const std::string& text) {
  std::string value, nested;
  if (read_members(text, "text", value, {"meta", "name"}, nested)) {
    ASSERT_EQ(error_of(text), "") << text;
    const Json parsed = parse_json(text, "in.json");
    ASSERT_EQ(parsed["text"], Json(value)) << text;
    const Json meta = parsed.value("meta", Json::object());
    ASSERT_EQ(meta.is_object() ? meta.value("name", "") : "", nested) << text;
  }
  if (!read_only_member(text, "text", value)) return;
  ASSERT_EQ(error_of(text), "") << text;
  const Json parsed = parse_json(text, "in.json");
  ASSERT_TRUE(parsed.is_object() && parsed.size() == 1 && parsed.contains("text")) << text;
  ASSERT_EQ(parsed["text"], Json(value)) << text;
}

TEST(Json, ReadsAnOnlyMemberAsTheParserDoes) {
  std::string value;
  EXPECT_TRUE(read_only_member(" {\t\"text\" : \"a\\n\\u00e9é\\\"\" } \r\n", "text", value));
  EXPECT_EQ(value, "a\néé\"");
  EXPECT_TRUE(read_only_member("{\"text\":\"\\ud83d\\ude00\\udbff\\udfff\"}", "text", value));
  EXPECT_EQ(value, "\U0001f600\U0010ffff");
  for (const char* other : {"",
                            "{",
                            "{}",
                            "{\"text\"}",
                            "{\"text\":1}",
                            "{\"text\":\"a}",
                            "{\"text\":\"a\"",
                            "{\"text\":\"a\"}}",
                            "[\"text\"]",
                            "{\" text\":\"a\"}",
                            "{\"texts\":\"a\"}",
                            "{\"text\":\"a\",\"b\":1}",
                            "{\"text\":\"\\x\"}",
                            "{\"text\":\"\\u12\"}",
                            "{\"text\":\"\\u+123\"}",
                            "{\"text\":\"\\ud83d\"}",
                            "{\"text\":\"\\ude00\\ud83d\"}",
                            "{\"text\":\"\\ud83d\\u0041\"}",
                            "{\"text\":\"\xff\"}",
                            "{\"text\":\"\x01\"}",
                            "{\"text\":\"\\"})
    EXPECT_FALSE(read_only_member(other, "text", value)) << other;
  std::mt19937 random(5);
  const std::string right = R"({"text": "a\n\u0041 \\ \"é\u00e9\ud83d\ude00"})";
  for (int round = 0; round < 20000; ++round) {
    std::string text = right;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 2) text[at] = static_cast<char>(random());
      if (random() % 2) text.erase(at, 1 + random() % 4);
      if (text.empty() || random() % 2) text.insert(std::min(at, text.size()), 1, "\"\\{}:,u0 "[random() % 9]);
    }
    expect_as_the_parser(text);
  }
}

TEST(Json, ReadsMembersAsTheParserDoes) {
  std::string value, nested;
  const auto reads = [&](const char* text) { return read_members(text, "text", value, {"meta", "name"}, nested); };
  EXPECT_TRUE(reads(R"( { "id" : "x", "text":"a\n\u00e9", "meta": {"other": "", "name" : "Pile-CC"} } )"));
  EXPECT_EQ(value, "a\né");
  EXPECT_EQ(nested, "Pile-CC");
  for (const char* text :
       {R"({"text":"a"})", R"({"meta":{},"text":"a"})", R"({"meta":"x","text":"a"})", R"({"text":"a","other":{"name":"x"}})"}) {
    EXPECT_TRUE(reads(text)) << text;
    EXPECT_EQ(value, "a");
    EXPECT_EQ(nested, "") << text;
  }
  for (const char* text :
       {"{}", R"({"id":"a"})", R"({"text":1})", R"({"text":{"text":"a"}})", R"({"text":"a","text":"b"})", R"({"text":"a","b":"c","b":"d"})",
        R"({"text":"a","meta":{"name":"x","name":"y"}})", R"({"text":"a","meta":{"name":1}})", R"({"text":"a","id":1})", R"({"text":"a",})",
        R"({"text":"a","meta":{"name":"x",}})", R"({"text":"a"}})", R"({"text":"a")", R"({"te\u0078t":"a"})"})
    EXPECT_FALSE(reads(text)) << text;
  std::mt19937 random(7);
  const std::string right = R"({"id": "1", "text": "a\n\u0041", "meta": {"name": "é", "b": "c"}})";
  for (int round = 0; round < 20000; ++round) {
    std::string text = right;
    for (unsigned changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 2) text.erase(at, 1 + random() % 4);
      if (text.empty() || random() % 2) text.insert(std::min(at, text.size()), 1, "\"\\{}:,u0 "[random() % 9]);
      if (text.empty()) break;
    }
    expect_as_the_parser(text);
  }
}

struct BadJson {
  std::string text;
  std::string message;
};

TEST(Json, RefusesTheRestWithFileAndOffset) {
  std::string deep = "[";
  for (int i = 0; i < kMaxJsonDepth; ++i) deep += "[";
  const BadJson cases[] = {
      {"", "in.json: not valid JSON: the text is empty"},
      {" ", "in.json: byte 2: not valid JSON: syntax error while parsing value - unexpected end of input"},
      {"[1,]", "in.json: byte 4: not valid JSON: "},
      {"[1", "in.json: byte 3: not valid JSON: "},
      {"{\"a\":1}}", "in.json: byte 8: not valid JSON: "},
      {"{'a':1}", "in.json: byte 2: not valid JSON: "},
      {"nan", "in.json: byte 2: not valid JSON: "},
      {"1e999", "in.json: byte 5: not valid JSON: number overflow parsing '1e999'"},
      {"01", "in.json: byte 2: not valid JSON: "},
      {"\"\xff\"", "in.json: byte 2: not valid JSON: "},
      {"\"\xc0\x80\"", "in.json: byte 2: not valid JSON: "},
      {"\"\xed\xa0\x80\"", "in.json: byte 3: not valid JSON: "},
      {"\"\\ud800\"", "in.json: byte 8: not valid JSON: "},
      {"\"\n\"", "in.json: byte 2: not valid JSON: "},
      {std::string("[1]\0", 4), "in.json: byte 4: not valid JSON: a NUL byte"},
      {std::string("[1]\0]x", 6), "in.json: byte 4: not valid JSON: a NUL byte"},
      {R"({"a":1,"b":2,"a":3})", "in.json: byte 16: duplicate key 'a'"},
      {R"({"x":{"a":1,"\u0061":3}})", "in.json: byte 20: duplicate key 'a'"},
      {deep, "in.json: byte 65: nested deeper than 64 arrays and objects"},
  };
  for (const BadJson& bad : cases) EXPECT_THAT(error_of(bad.text), StartsWith(bad.message)) << bad.text;
}

TEST(Json, DepthLimitIsExact) {
  const std::string open(kMaxJsonDepth, '['), close(kMaxJsonDepth, ']');
  EXPECT_EQ(error_of(open + close), "");
  EXPECT_NE(error_of("[" + open + close + "]"), "");
  EXPECT_NE(error_of(std::string(8'000'000, '[')), "") << "no stack overflow";
}

TEST(Json, DuplicatesAreFoundAmongManyKeysToo) {
  std::string text = "{";
  for (int i = 0; i < 1000; ++i) text += "\"" + std::to_string(i) + "\":0,";
  EXPECT_EQ(error_of(text + "\"x\":0}"), "");
  for (const char* again : {"0", "11", "12", "13", "999"}) {
    EXPECT_THAT(error_of(text + "\"" + again + "\":0}"), ::testing::HasSubstr("duplicate key '" + std::string(again) + "'"));
  }
}

TEST(Json, DumpReplacesWhatIsNotUtf8) {
  EXPECT_EQ(dump_json(Json("a\xff")), "\"a\xef\xbf\xbd\"");
  EXPECT_EQ(dump_json(Json{{"a", 1}}, 2), "{\n  \"a\": 1\n}");
}

}  // namespace json_test
}  // namespace based
