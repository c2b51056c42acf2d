// Messages of faulty data files.
#include "based/eval/tasks/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace json_reader_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JsonReader : public testing::Test {
 protected:
  // The message of reading a file with this content by `read`.
  std::string fault(const std::string& content, const std::function<void(const DataField&)>& read) {
    write_file_atomic(path_, content);
    return message_of<Error>([&] { read_json_lines(path_, [&](const DataField& line, int64_t) { read(line); }); });
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.file("set.jsonl");
};

TEST_F(JsonReader, ReadsLinesWithTheirPlaces) {
  write_file_atomic(path_, "{\"a\": \"x\"}\n\n{\"a\": \"y\", \"b\": {\"c\": [1, 2]}}\r\n");
  std::vector<std::string> read;
  read_json_lines(path_, [&](const DataField& line, int64_t row) { read.push_back(std::to_string(row) + line.text("a") + line.place()); });
  EXPECT_THAT(read, ElementsAre("0x" + path_ + ":1", "1y" + path_ + ":3"));
}

TEST_F(JsonReader, NamesFileLineAndField) {
  const auto label = [](const DataField& line) { line.index("label", 2); };
  EXPECT_EQ(fault("{\"label\": 1}\n{}", label), path_ + ":2: 'label' is missing");
  EXPECT_EQ(fault("{\"label\": 2}", label), path_ + ":1: 'label' must be an integer from 0 to 1, is 2");
  EXPECT_EQ(fault("{\"label\": -1}", label), path_ + ":1: 'label' must be an integer from 0 to 1, is -1");
  EXPECT_EQ(fault("{\"label\": 18446744073709551615}", label),
            path_ + ":1: 'label' must be an integer from 0 to 1, is 18446744073709551615");
  EXPECT_EQ(fault("{\"label\": true}", label), path_ + ":1: 'label' must be an integer from 0 to 1, is true");
  EXPECT_EQ(fault("{\"label\": 1.0}", label), path_ + ":1: 'label' must be an integer from 0 to 1, is 1.0");
}

TEST_F(JsonReader, NamesNestedFields) {
  const auto read = [](const DataField& line) {
    for (const DataField& question : line.at("passage").at("questions").items()) question.text("text");
  };
  EXPECT_EQ(fault(R"({"passage": {"questions": [{"text": "a"}, {"text": 3}]}})", read),
            path_ + ":1: 'passage.questions[1].text' must be a string, is 3");
  EXPECT_EQ(fault(R"({"passage": {"questions": {}}})", read), path_ + ":1: 'passage.questions' must be a list, is {}");
  EXPECT_EQ(fault(R"({"passage": "text"})", read), path_ + ":1: 'passage' must be an object, is \"text\"");
}

TEST_F(JsonReader, RefusesFilesThatAreNoData) {
  const auto nothing = [](const DataField&) {};
  EXPECT_EQ(fault("", nothing), path_ + ": there are no documents in this file");
  EXPECT_EQ(fault("\n \n", nothing), path_ + ": there are no documents in this file");
  EXPECT_THAT(fault("{}\n{\"a\": \"\xc3(\"}", nothing), HasSubstr(path_ + ":2: byte "));
  EXPECT_THAT(fault("{}\n{\"a\"", nothing), HasSubstr(path_ + ":2: byte "));
  EXPECT_EQ(fault("[1]", nothing), path_ + ":1: the value must be an object, is [1]");
}

TEST_F(JsonReader, NamesTheFolderOfAMissingSet) {
  EXPECT_EQ(message_of<Error>([&] { data_file({.data = folder_.path().string()}, "piqa/valid.jsonl"); }),
            folder_.file("piqa/valid.jsonl") + ": there is no such file; --data must name the folder of the unpacked data sets");
}

}  // namespace json_reader_test
}  // namespace based
