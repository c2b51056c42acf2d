#include "based/data/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "based/core/json.h"
#include "based/core/utf8.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace json_lines_test {

using ::testing::HasSubstr;

std::string encoded(const std::string& lines, Specials specials = Specials::as_text) {
  std::istringstream in(lines);
  std::ostringstream out;
  encode_json_lines(ByteTokenizer(), specials, in, "in", out);
  return out.str();
}

std::string decoded(const std::string& lines) {
  std::istringstream in(lines);
  std::ostringstream out;
  decode_json_lines(ByteTokenizer(), in, "in", out);
  return out.str();
}

TEST(JsonLines, EncodeAndDecodeAreInverse) {
  EXPECT_EQ(encoded("{\"text\":\"a\\u00e9\"}\n\n{\"text\":\"\"}\r\n{\"bytes\":[255,0]}"),
            "{\"ids\":[97,195,169]}\n{\"ids\":[]}\n{\"ids\":[255,0]}\n");
  EXPECT_EQ(decoded("{\"ids\":[97,195,169]}\n{\"ids\":[]}\n{\"ids\":[255,0]}"),
            "{\"text\":\"aé\"}\n{\"text\":\"\"}\n{\"bytes\":[255,0]}\n");
  EXPECT_EQ(encoded("{\"text\":\"<|endoftext|>\"}", Specials::recognised), "{\"ids\":[256]}\n");
}

TEST(JsonLines, AnyBytesComeBack) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = static_cast<char>(round % 2 ? random() : random() % 128);
    Json line = Json::object();
    if (is_valid_utf8(bytes)) {
      line["text"] = bytes;
    } else {
      for (const char c : bytes) line["bytes"].push_back(static_cast<unsigned char>(c));
    }
    const std::string text = dump_json(line) + "\n";
    ASSERT_EQ(decoded(encoded(text)), text);
  }
}

TEST(JsonLines, BadLinesAreNamed) {
  const auto encode_error = [](const std::string& line) { return message_of<Error>([&] { encoded("{\"text\":\"\"}\n" + line); }); };
  EXPECT_THAT(encode_error("{\"text\":1}"), HasSubstr("in:2: 'text' must be a string"));
  EXPECT_THAT(encode_error("{}"), HasSubstr("in:2: needs either 'text' or 'bytes'"));
  EXPECT_THAT(encode_error("{\"text\":\"\",\"bytes\":[]}"), HasSubstr("in:2: needs either"));
  EXPECT_THAT(encode_error("{\"bytes\":[1,256]}"), HasSubstr("in:2: 'bytes'[1] must be an integer from 0 to 255"));
  EXPECT_THAT(encode_error("[]"), HasSubstr("in:2: must be a JSON object"));
  EXPECT_THAT(encode_error("{\"text\":\"\xff\"}"), HasSubstr("in:2: "));
  const auto decode_error = [](const std::string& line) { return message_of<Error>([&] { decoded(line); }); };
  for (const char* id : {"-1", "257", "1.0", "\"a\"", "18446744073709551615", "null"}) {
    EXPECT_THAT(decode_error(std::string("{\"ids\":[") + id + "]}"), HasSubstr("in:1: 'ids'[0] must be an integer from 0 to 256")) << id;
  }
  EXPECT_THAT(decode_error("{\"ids\":3}"), HasSubstr("in:1: 'ids' must be a list"));
  EXPECT_THAT(decode_error("{}"), HasSubstr("in:1: needs 'ids'"));
}

}  // namespace json_lines_test
}  // namespace based
