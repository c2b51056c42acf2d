#include "based/data/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/compressed.h"

namespace based {
namespace documents_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Documents : public ::testing::Test {
 protected:
  std::vector<std::string> read(const std::string& name, const std::string& content, TextFormat format = TextFormat::by_name) {
    write_file_atomic(folder_.file(name), content);
    std::vector<std::string> documents;
    read_documents(folder_.file(name), format, [&](std::string_view text) { documents.emplace_back(text); });
    return documents;
  }
  std::string refusal(const std::string& name, const std::string& content) {
    return message_of<Error>([&] { read(name, content); });
  }
  TemporaryFolder folder_;
};

TEST_F(Documents, ATextFileIsOneDocument) {
  EXPECT_THAT(read("a.txt", "one\n\ntwo\n"), ElementsAre("one\n\ntwo\n"));
  EXPECT_THAT(read("b.md", std::string("\0\xff", 2)), ElementsAre(std::string("\0\xff", 2)));
  EXPECT_THAT(read("c.txt", ""), ElementsAre());
  EXPECT_THAT(read("d", "x", TextFormat::text), ElementsAre("x"));
}

TEST_F(Documents, TheNameTellsTheFormat) {
  EXPECT_THAT(read("a.ndjson", "{\"text\":\"a\"}\n"), ElementsAre("a"));
  EXPECT_THAT(read("b.JSONL", "{\"text\":\"a\"}\n"), ElementsAre("a"));
  EXPECT_THAT(read("c.Fa", ">x\nAC\n"), ElementsAre("AC"));
  EXPECT_THAT(read("d.jsonl", "{\"text\":\"a\"}\n", TextFormat::by_name_or_text), ElementsAre("a"));
  EXPECT_THAT(read("wiki.test.raw", "a", TextFormat::by_name_or_text), ElementsAre("a"));
  EXPECT_THAT(refusal("wiki.test.raw", "a"), HasSubstr("the name does not tell the format; give the format as text, jsonl or fasta"));
  for (const char* name : {"a.json", "b.csv", "c.parquet", "d.jsonl.gz", "e.JSON.zst"})
    EXPECT_THAT(message_of<Error>([&] { read(name, "a", TextFormat::by_name_or_text); }),
                HasSubstr("the name tells a format that is not read; give the format as"));
}

TEST_F(Documents, HavePlacesForMessages) {
  const auto places = [&](const std::string& name, const std::string& content) {
    write_file_atomic(folder_.file(name), content);
    std::vector<std::string> all;
    read_named_documents(folder_.file(name), TextFormat::by_name,
                         [&](std::string_view, const std::string& place) { all.push_back(place); });
    return all;
  };
  EXPECT_THAT(places("a.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"\", \"id\":1}\n"),
              ElementsAre(folder_.file("a.jsonl") + ":1", folder_.file("a.jsonl") + ":3"));
  EXPECT_THAT(places("b.fa", "\n>x\nAC\nGT\n>y\nA\n"), ElementsAre(folder_.file("b.fa") + ":2", folder_.file("b.fa") + ":5"));
  EXPECT_THAT(places("c.txt", "a\nb"), ElementsAre(folder_.file("c.txt")));
}

TEST_F(Documents, JsonLinesGiveTheirText) {
  EXPECT_THAT(read("a.jsonl", "{\"text\":\"one\\n\",\"id\":1}\n\n{\"text\":\"\"}\r\n{\"text\":\"caf\\u00e9\"}"),
              ElementsAre("one\n", "", "café"));
  EXPECT_THAT(refusal("b.jsonl", "{\"text\":\"a\"}\n{\"text\":1}\n"), HasSubstr("b.jsonl:2: needs an object with the text in 'text'"));
  EXPECT_THAT(refusal("c.jsonl", "{\"text\":\"a\"}\n\n[1]\n"), HasSubstr("c.jsonl:3: needs an object"));
  EXPECT_THAT(refusal("d.jsonl", "{\"text\":\"a\"\n"), HasSubstr("d.jsonl:1: "));
}

TEST_F(Documents, JsonLinesMayNameTheirSource) {
  const auto sources = [&](const std::string& content) {
    write_file_atomic(folder_.file("a.jsonl"), content);
    std::vector<std::string> all;
    read_blocks(folder_.file("a.jsonl"), TextFormat::by_name, [&](const DocumentBlock& block) {
      parse_block(block,
                  [&](const Document& document) { all.push_back(std::string(document.text) + " of " + std::string(document.source)); });
    });
    return all;
  };
  // The lines with a number or a list are not read by read_members.
  EXPECT_THAT(sources(R"({"text":"a","meta":{"pile_set_name":"Pile-CC"}}
{"text":"b","meta":{"pile_set_name":"ArXiv","stars":7}}
{"text":"c","meta":"ArXiv"}
{"text":"d","meta":["ArXiv"]}
{"text":"e","meta":{"pile_set_name":""}}
{"text":"f","meta":{"pile_set_name":"","stars":7}}
{"text":"g","pile_set_name":"ArXiv"}
)"),
              ElementsAre("a of Pile-CC", "b of ArXiv", "c of ", "d of ", "e of ", "f of ", "g of "));
  EXPECT_THAT(message_of<Error>([&] {
                sources(R"({"text":"a"}
{"text":"a","meta":{"pile_set_name":7}})");
              }),
              HasSubstr("a.jsonl:2: meta.pile_set_name must be a string"));
  for (const char* more : {"", R"(,"stars":7)"}) {
    EXPECT_THAT(message_of<Error>([&] { sources(R"({"text":"a","meta":{"pile_set_name":"a\u0000")" + std::string(more) + "}}"); }),
                HasSubstr("a.jsonl:1: meta.pile_set_name must have at most 255 bytes and no control characters"));
  }
}

TEST_F(Documents, FastaGivesOneDocumentARecord) {
  EXPECT_THAT(read("a.fa", ">one x\r\nACgt\r\nNN\n\n>two\nA*-\n"), ElementsAre("ACgtNN", "A*-"));
  EXPECT_THAT(refusal("b.fasta", "ACGT\n"), HasSubstr("b.fasta:1: a FASTA file must start with a line '>name'"));
  EXPECT_THAT(refusal("c.fna", ">one\nAC GT\n"), HasSubstr("c.fna:2: ' ' is no letter"));
  EXPECT_THAT(refusal("d.fna", ">one\n>two\nAC\n"), HasSubstr("d.fna:1: the record has no sequence"));
}

TEST_F(Documents, CompressedFilesReadTheSame) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "{\"text\":\"line " + std::to_string(i * 7919) + "\"}\n";
  EXPECT_EQ(read("a.jsonl.zst", compressed(lines)), read("a.jsonl", lines));
  EXPECT_THAT(read("b.fa.zst", compressed(">x\nACGT\n") + compressed(">y\nTT\n")), ElementsAre("ACGT", "TT"));  // two frames
  const std::string whole = compressed(lines);
  EXPECT_THAT(refusal("c.txt.zst", whole.substr(0, whole.size() / 2)), HasSubstr("c.txt.zst: cut off"));
  std::string damaged = whole;
  damaged[whole.size() / 2] ^= 0x55;
  damaged[whole.size() / 2 + 1] ^= 0x55;
  EXPECT_THAT(refusal("d.txt.zst", damaged), HasSubstr("d.txt.zst"));
  EXPECT_THAT(refusal("f.jsonl.zst", ""), HasSubstr("f.jsonl.zst: cut off: it is empty"));
  EXPECT_THAT(read("g.jsonl.zst", compressed("")), ElementsAre());
  EXPECT_THAT(refusal("e.txt.zst", "not compressed"), HasSubstr("e.txt.zst: damaged zstd data"));
}

TEST_F(Documents, LongLinesCrossTheReadBuffer) {
  const std::string text(1000000, 'x');
  EXPECT_THAT(read("a.jsonl", "{\"text\":\"" + text + "\"}\n{\"text\":\"y\"}\n"), ElementsAre(text, "y"));
}

TEST_F(Documents, UnknownNamesAndMissingFilesAreErrors) {
  EXPECT_THAT(refusal("a.csv", "x"), HasSubstr("a.csv: the name does not tell the format"));
  EXPECT_THAT(message_of<Error>([&] { read_documents(folder_.file("none.txt"), TextFormat::by_name, [](std::string_view) {}); }),
              HasSubstr("none.txt: No such file"));
  EXPECT_THAT(message_of<Error>([&] { read_documents(folder_.path(), TextFormat::text, [](std::string_view) {}); }),
              HasSubstr("Is a directory"));
  EXPECT_EQ(text_format("fasta"), TextFormat::fasta);
  EXPECT_THAT(message_of<Error>([] { text_format("csv"); }), HasSubstr("got 'csv'"));
}

}  // namespace documents_test
}  // namespace based
