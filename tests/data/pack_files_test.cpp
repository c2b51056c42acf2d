#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "based/core/files.h"
#include "based/data/shards.h"
#include "tests/core/temporary_folder.h"
#include "tests/data/compressed.h"

namespace based {
namespace pack_files_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PackedFiles : public ::testing::Test {
 protected:
  // JSON lines of documents of random length. Some are empty, and some have a source.
  std::string lines(int count, unsigned seed) {
    std::mt19937 random(seed);
    std::string all;
    for (int i = 0; i < count; ++i) {
      const std::string text = std::string(random() % 400, 'x') + std::to_string(i);
      all += "{\"text\":\"" + (random() % 20 == 0 ? "" : text) + "\"";
      if (random() % 3 != 0) all += ",\"meta\":{\"pile_set_name\":\"Source " + std::to_string(random() % 5) + "\"}";
      all += "}\n";
    }
    return all;
  }
  PackReport pack(const std::string& out, PackSettings settings) {
    settings.shard_tokens = 100'000;
    return pack_files(files_, "auto", ByteTokenizer(), folder_.file(out), settings);
  }
  // The bytes of all shards.
  std::string bytes_of(const std::string& set) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file(set))) names.push_back(entry.path().string());
    std::sort(names.begin(), names.end());
    std::string all;
    for (const std::string& name : names) all += name.substr(name.rfind('/')) + read_file(name);
    return all;
  }
  // Each document's text and source, in order.
  std::vector<std::pair<std::string, std::string>> documents_of(const std::string& set) const {
    const TokenDataset data(folder_.file(set));
    std::vector<std::pair<std::string, std::string>> documents;
    for (int64_t i = 0; i < data.documents(); ++i) {
      const int64_t first = data.document_start(i), end = i + 1 < data.documents() ? data.document_start(i + 1) : data.tokens();
      std::vector<int32_t> ids(static_cast<size_t>(end - first));
      data.copy(first, ids);
      EXPECT_EQ(data.document_at(first), i);
      EXPECT_EQ(data.document_at(end - 1), i);
      EXPECT_EQ(data.source_at(end - 1), data.document_source(i));
      const int64_t source = data.document_source(i);
      documents.emplace_back(ByteTokenizer().decode(ids), source < 0 ? "" : data.source_names()[static_cast<size_t>(source)]);
    }
    return documents;
  }
  void write(const std::string& name, const std::string& content) {
    write_file_atomic(folder_.file(name), content);
    files_.push_back(folder_.file(name));
  }
  TemporaryFolder folder_;
  std::vector<std::string> files_;
};

TEST_F(PackedFiles, TheBytesDoNotDependOnTheThreads) {
  write("a.jsonl", lines(2000, 1));  // several blocks
  write("b.txt", "a text");
  write("c.jsonl.zst", compressed(lines(1500, 2)));
  for (const bool shuffled : {false, true}) {
    std::string expected;
    for (const int64_t threads : {1, 2, 7}) {
      const std::string out = "out" + std::to_string(threads) + (shuffled ? "s" : "");
      PackSettings settings;
      settings.threads = threads;
      if (shuffled) settings.shuffle_seed = 3;
      const PackReport report = pack(out, settings);
      EXPECT_EQ(report.sources, 5);
      EXPECT_GT(report.empty, 0);
      EXPECT_EQ(report.documents + report.empty, 3501);
      EXPECT_GT(report.shards, 4);
      if (expected.empty()) expected = bytes_of(out);
      EXPECT_TRUE(bytes_of(out) == expected) << threads << " threads";
    }
  }
}

TEST_F(PackedFiles, AShuffleIsAPermutationThatDependsOnTheSeed) {
  write("a.jsonl", lines(1000, 3));
  PackSettings settings;
  pack("plain", settings);
  settings.shuffle_seed = 0;
  pack("zero", settings);
  pack("again", settings);
  settings.shuffle_seed = 1;
  pack("one", settings);
  auto plain = documents_of("plain"), zero = documents_of("zero"), one = documents_of("one");
  EXPECT_TRUE(bytes_of("zero") == bytes_of("again"));
  EXPECT_NE(zero, one);
  EXPECT_NE(zero, plain);
  // Unrelated orders agree at one place on average.
  for (const auto& [a, b] : {std::pair(&plain, &zero), std::pair(&plain, &one), std::pair(&zero, &one)}) {
    int equal = 0;
    for (size_t i = 0; i < a->size(); ++i) equal += (*a)[i] == (*b)[i];
    EXPECT_LT(equal, 20);
  }
  for (auto* documents : {&plain, &zero, &one}) std::sort(documents->begin(), documents->end());
  EXPECT_EQ(plain, zero);
  EXPECT_EQ(plain, one);
}

TEST_F(PackedFiles, KeepTheSourcesOfTheDocuments) {
  write("a.jsonl", R"({"text":"one"}
{"text":"two","meta":{"pile_set_name":"B"}}
{"text":"","meta":{"pile_set_name":"of an empty document"}}
{"meta":{"pile_set_name":"A","id":3},"text":"three"}
{"text":"four","meta":{"pile_set_name":"B"}}
{"text":"five","meta":{}}
)");
  pack("out", {});
  EXPECT_THAT(documents_of("out"),
              ElementsAre(std::pair("one<|endoftext|>", ""), std::pair("two<|endoftext|>", "B"), std::pair("three<|endoftext|>", "A"),
                          std::pair("four<|endoftext|>", "B"), std::pair("five<|endoftext|>", "")));
  const TokenDataset data(folder_.file("out"));
  EXPECT_THAT(data.source_names(), ElementsAre("B", "A"));
  const auto sizes = data.source_sizes();
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes[0].documents, 2);
  EXPECT_EQ(sizes[0].tokens, 4 + 5);
  EXPECT_EQ(sizes[1].tokens, 6);
  EXPECT_EQ(sizes[2].documents, 2);
  EXPECT_EQ(sizes[2].tokens, 4 + 5);
}

TEST_F(PackedFiles, AFileWithoutADocumentIsNamed) {
  for (const char* name : {"a.txt", "b.jsonl"}) write(name, "");
  write("c.jsonl", "\n\n");
  write("d.jsonl.zst", compressed(""));
  write("e.jsonl", lines(2, 1));
  testing::internal::CaptureStderr();
  pack("out", {});
  const std::string messages = testing::internal::GetCapturedStderr();
  for (const char* name : {"a.txt", "b.jsonl", "c.jsonl", "d.jsonl.zst"})
    EXPECT_THAT(messages, HasSubstr(std::string(name) + ": has no document")) << messages;
  EXPECT_THAT(messages, testing::Not(HasSubstr("e.jsonl")));
}

// The first error in the order of the text, whichever thread finds its error first; no shard and no temporary file is left.
TEST_F(PackedFiles, NameTheDocumentThatTheTokenizerRefuses) {
  struct Letters : Tokenizer {
    Letters() : Tokenizer(Vocabulary{{"a"}, {}, {}}) {}
    void encode_text(std::string_view text, std::vector<int32_t>& ids) const override {
      if (text != "a") throw Error("cannot encode");
      ids.push_back(0);
    }
  };
  write_file_atomic(folder_.file("a.jsonl"), "{\"text\":\"a\"}\n{\"text\":\"b\"}\n");
  write_file_atomic(folder_.file("b.txt"), "b");
  for (const int64_t threads : {1, 3}) {
    const auto refusal = [&](const char* file) {
      PackSettings settings;
      settings.threads = threads;
      return message_of<Error>([&] { pack_files({folder_.file(file)}, "auto", Letters(), folder_.file("refused"), settings); });
    };
    EXPECT_EQ(refusal("a.jsonl"), folder_.file("a.jsonl") + ":2: cannot encode");
    EXPECT_EQ(refusal("b.txt"), folder_.file("b.txt") + ": cannot encode");
  }
}

TEST_F(PackedFiles, NameTheFirstErrorWithAnyNumberOfThreads) {
  write("a.jsonl", lines(1500, 4) + "{\"txt\":1}\n" + lines(800, 5) + "{}\n" + lines(800, 6));
  write("cut.jsonl.zst", compressed(lines(100, 7)).substr(0, 200));
  for (const int64_t threads : {1, 4}) {
    PackSettings settings;
    settings.threads = threads;
    settings.shuffle_seed = 1;
    EXPECT_THAT(message_of<Error>([&] { pack("out", settings); }), HasSubstr("a.jsonl:1501: needs an object with the text"));
    EXPECT_FALSE(std::filesystem::exists(folder_.file("out")));
  }
  files_ = {files_.back()};
  EXPECT_THAT(message_of<Error>([&] { pack("out", {}); }), HasSubstr("cut.jsonl.zst: cut off"));
  PackSettings none;
  none.threads = 0;
  EXPECT_THAT(message_of<UsageError>([&] { pack("out", none); }), HasSubstr("threads must be from 1 to 1024"));
}

}  // namespace pack_files_test
}  // namespace based
