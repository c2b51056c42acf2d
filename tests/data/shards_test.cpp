#include "based/data/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <numeric>
#include <random>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace shards_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A tokenizer of any vocabulary size that cannot encode text.
class Numbers final : public Tokenizer {
 public:
  explicit Numbers(size_t size) : Tokenizer(Vocabulary{std::vector<std::string>(size, "x"), {}, {}}) {}
  void encode_text(std::string_view, std::vector<int32_t>&) const override {}
};

std::vector<int32_t> all_tokens(const TokenDataset& data) {
  std::vector<int32_t> tokens(static_cast<size_t>(data.tokens()));
  data.copy(0, tokens);
  return tokens;
}

std::vector<int64_t> all_starts(const TokenDataset& data) {
  std::vector<int64_t> starts;
  data.append_document_starts(0, data.tokens(), starts);
  return starts;
}

TEST(Shards, GiveBackWhatWasWrittenInBothWidthsAndAnyNumberOfShards) {
  const TemporaryFolder folder;
  std::mt19937 random(1);
  for (const size_t vocab : {300, 65536, 65537, 100000}) {
    const Numbers tokenizer(vocab);
    for (const int64_t per_shard : {1, 37, 1000, 1000000}) {
      const std::string path = folder.file(std::to_string(vocab) + "-" + std::to_string(per_shard));
      ShardWriter writer(path, tokenizer, per_shard);
      std::vector<int32_t> expected;
      std::vector<int64_t> starts;
      for (int i = 0; i < 10; ++i) {
        std::vector<int32_t> document(random() % 60);
        for (int32_t& id : document) id = static_cast<int32_t>(random() % vocab);
        if (i == 3) document = {static_cast<int32_t>(vocab - 1)};
        if (!document.empty()) starts.push_back(static_cast<int64_t>(expected.size()));
        writer.add_document(document);
        expected.insert(expected.end(), document.begin(), document.end());
      }
      writer.finish();
      const TokenDataset data(path);
      EXPECT_EQ(all_tokens(data), expected);
      EXPECT_EQ(all_starts(data), starts);
      EXPECT_EQ(data.documents(), static_cast<int64_t>(starts.size()));
      EXPECT_EQ(data.tokenizer_hash(), tokenizer.hash());
      data.require_tokenizer(tokenizer);
      for (int i = 0; i < 50; ++i) {  // random ranges, also across shards
        const size_t first = random() % expected.size(), count = random() % (expected.size() - first + 1);
        std::vector<int32_t> part(count, -1);
        data.copy(static_cast<int64_t>(first), part);
        ASSERT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + static_cast<std::ptrdiff_t>(first)));
        std::vector<int64_t> some, wanted;
        data.append_document_starts(static_cast<int64_t>(first), static_cast<int64_t>(first + count), some);
        for (const int64_t start : starts) {
          if (start >= static_cast<int64_t>(first) && start < static_cast<int64_t>(first + count)) wanted.push_back(start);
        }
        ASSERT_EQ(some, wanted);
      }
    }
  }
}

TEST(Shards, WriterRefusesBadIdsUsedFoldersAndNothing) {
  const TemporaryFolder folder;
  const Numbers tokenizer(300);
  ShardWriter writer(folder.file("a"), tokenizer);
  for (const int32_t id : {-1, 300}) {
    const std::vector<int32_t> ids = {1, id};
    EXPECT_THAT(message_of<Error>([&] { writer.add_document(ids); }), HasSubstr("is outside the vocabulary of 300 tokens"));
  }
  EXPECT_THAT(message_of<Error>([&] { writer.finish(); }), HasSubstr("there were no documents"));
  const std::vector<int32_t> ids = {1, 2};
  writer.add_document(ids);
  writer.finish();
  EXPECT_THAT(message_of<Error>([&] { ShardWriter(folder.file("a"), tokenizer); }),
              HasSubstr(folder.file("a") + ": holds token shards (00000.tokens); name another folder"));
}

TEST(Shards, AWriterThatIsGivenUpLeavesNothing) {
  const TemporaryFolder folder;
  const std::vector<int32_t> ids = {1, 2, 3};
  {
    ShardWriter writer(folder.file("a/b"), Numbers(300), 3);
    for (int i = 0; i < 3; ++i) writer.add_document(ids);
    EXPECT_EQ(writer.shards(), 2);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.file("a/b")));
  write_file_atomic(folder.file("a/other"), "x");
  {
    ShardWriter writer(folder.file("a"), Numbers(300), 3);
    for (int i = 0; i < 3; ++i) writer.add_document(ids);
  }
  EXPECT_EQ(read_file(folder.file("a/other")), "x");
  EXPECT_FALSE(std::filesystem::exists(folder.file("a/00000.tokens")));
}

// The writer is killed after its second shard, within the third.
TEST(Shards, WhatAKilledWriterLeftIsClearedByTheNext) {
  const TemporaryFolder folder;
  const std::vector<int32_t> ids = {1, 2, 3};
  const auto add = [&](ShardWriter& writer) {
    for (int i = 0; i < 3; ++i) writer.add_document(ids);
  };
  const pid_t child = fork();
  if (child == 0) {
    ShardWriter writer(folder.file("a"), Numbers(300), 3);
    add(writer);
    AtomicFile third(folder.file("a/00002.tokens"));
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  const auto left = [&](const std::string& part_of_name) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.file("a")))
      count += entry.path().filename().string().find(part_of_name) != std::string::npos;
    return count;
  };
  ASSERT_EQ(left(".tokens"), 3);
  ASSERT_EQ(left(".tmp-"), 1);
  EXPECT_THROW(TokenDataset(folder.file("a")), Error);
  {
    ShardWriter writer(folder.file("a"), Numbers(300), 6);
    add(writer);
    writer.finish();
  }
  EXPECT_EQ(TokenDataset(folder.file("a")).tokens(), 9);
  EXPECT_EQ(left(".tokens"), 2);
  EXPECT_EQ(left(".tmp-"), 0);
  std::filesystem::remove(folder.file("a/00000.tokens"));
  EXPECT_THROW(ShardWriter(folder.file("a"), Numbers(300)), Error) << "the last shard of a set is no leftover";
  write_file_atomic(folder.file("a/00001.tokens"), "a stranger's");
  EXPECT_THROW(ShardWriter(folder.file("a"), Numbers(300)), Error);
}

// One shard with three documents and a vocabulary of 300, as bytes that a test can damage.
class DamagedShard : public ::testing::Test {
 protected:
  DamagedShard() : DamagedShard({"", "", ""}) {}
  explicit DamagedShard(const std::array<std::string, 3>& sources) {
    ShardWriter writer(folder_.file("set"), Numbers(300));
    for (int32_t document = 0; document < 3; ++document) {
      std::vector<int32_t> ids(5);
      std::iota(ids.begin(), ids.end(), 10 * document);
      writer.add_document(ids, sources[static_cast<size_t>(document)]);
    }
    writer.finish();
    bytes_ = read_file(folder_.file("set/00000.tokens"));
  }
  template <class T>
  void put(size_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof(T));
  }
  void mend() {  // makes both checksums valid again
    const auto all = std::as_bytes(std::span(bytes_));
    put(48, xxh3_64(all.subspan(72)));
    put(64, xxh3_64(std::as_bytes(std::span(bytes_)).first(64)));
  }
  std::string refusal() const {
    return message_of<Error>([&] { parse_shard(std::as_bytes(std::span(bytes_)), "f", ShardCheck::whole); });
  }
  TemporaryFolder folder_;
  std::string bytes_;
};

TEST_F(DamagedShard, WholeItIsAccepted) {
  const TokenShard shard = parse_shard(std::as_bytes(std::span(bytes_)), "f", ShardCheck::whole);
  EXPECT_EQ(shard.tokens, 15);
  EXPECT_EQ(bytes_.size(), 72u + 32 + 24);
}

TEST_F(DamagedShard, EveryFlippedBitIsSeen) {
  const std::string whole = bytes_;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    bytes_ = whole;
    bytes_[bit / 8] = static_cast<char>(bytes_[bit / 8] ^ (1 << bit % 8));
    EXPECT_THAT(refusal(), StartsWith("f: byte ")) << "bit " << bit;
  }
}

TEST_F(DamagedShard, EveryTruncationAndEveryExtensionIsSeen) {
  const std::string whole = bytes_;
  for (size_t size = 0; size < whole.size(); ++size) {
    bytes_ = whole.substr(0, size);
    EXPECT_THAT(refusal(), StartsWith("f: byte "));
  }
  bytes_ = whole + std::string(1, '\0');
  EXPECT_EQ(refusal(), "f: byte 128: bytes left over: 129 bytes, should be 128");
  bytes_ = whole.substr(0, 100);
  EXPECT_EQ(refusal(), "f: byte 100: cut off: 100 bytes, should be 128");
}

TEST_F(DamagedShard, EachFieldIsChecked) {
  const std::string whole = bytes_;
  const auto changed = [&](auto change) {
    bytes_ = whole;
    change();
    mend();
    return refusal();
  };
  EXPECT_EQ(changed([&] { put(72 + 2 * 7, uint16_t{300}); }), "f: byte 86: token id 300 is outside the vocabulary of 300 tokens");
  EXPECT_THAT(changed([&] { bytes_[0] = 'X'; }), HasSubstr("byte 0: no token shard"));
  EXPECT_THAT(changed([&] { put(8, uint32_t{3}); }), HasSubstr("byte 8: version 3 is not known"));
  EXPECT_THAT(changed([&] { put(12, uint32_t{3}); }), HasSubstr("byte 12: 3 bytes a token"));
  for (const uint64_t tokens : {uint64_t{0}, uint64_t{14}, uint64_t{17}, uint64_t{1} << 63, ~uint64_t{0}}) {
    EXPECT_THAT(changed([&] { put(16, tokens); }), StartsWith("f: byte ")) << tokens;
  }
  for (const uint64_t documents : {uint64_t{0}, uint64_t{2}, uint64_t{16}, uint64_t{1} << 61, ~uint64_t{0}}) {
    EXPECT_THAT(changed([&] { put(24, documents); }), StartsWith("f: byte ")) << documents;
  }
  for (const uint64_t vocab : {uint64_t{0}, ~uint64_t{0}})
    EXPECT_THAT(changed([&] { put(32, vocab); }), HasSubstr("byte 32: a vocabulary"));
  EXPECT_THAT(changed([&] { put(60, uint32_t{2}); }), HasSubstr("byte 60"));
  for (const uint64_t start : {uint64_t{0}, uint64_t{10}, uint64_t{15}, ~uint64_t{0}}) {  // the start of the second document
    EXPECT_THAT(changed([&] { put(104 + 8, start); }), HasSubstr("documents must start at 0, ascend")) << start;
  }
  EXPECT_THAT(changed([&] { put(104, uint64_t{1}); }), HasSubstr("byte 104: document 0 starts at token 1"));
}

// A shard of version 2: the ids to byte 104, the starts to 128, the sources to 144, two numbers, and the names from 160 on.
class DamagedSources : public DamagedShard {
 protected:
  DamagedSources() : DamagedShard({"Pile-CC", "", "ArXiv"}) {}
};

TEST_F(DamagedSources, WholeTheyAreAccepted) {
  const TokenShard shard = parse_shard(std::as_bytes(std::span(bytes_)), "f", ShardCheck::whole);
  EXPECT_EQ(bytes_.size(), 176u);
  EXPECT_THAT(shard.source_names, ElementsAre("Pile-CC", "ArXiv"));
  EXPECT_EQ(shard.document_source(0), 0);
  EXPECT_EQ(shard.document_source(1), -1);
  EXPECT_EQ(shard.document_source(2), 1);
}

TEST_F(DamagedSources, EveryFlippedBitAndEveryTruncationIsSeen) {
  const std::string whole = bytes_;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    bytes_ = whole;
    bytes_[bit / 8] = static_cast<char>(bytes_[bit / 8] ^ (1 << bit % 8));
    EXPECT_THAT(refusal(), StartsWith("f: byte ")) << "bit " << bit;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    bytes_ = whole.substr(0, size);
    EXPECT_THAT(refusal(), StartsWith("f: byte "));
  }
  bytes_ = whole + std::string(8, '\0');
  EXPECT_EQ(refusal(), "f: byte 176: bytes left over: 184 bytes, should be 176");
}

TEST_F(DamagedSources, EachFieldIsChecked) {
  const std::string whole = bytes_;
  const auto changed = [&](auto change) {
    bytes_ = whole;
    change();
    mend();
    return refusal();
  };
  EXPECT_EQ(changed([&] { put(132, uint32_t{3}); }), "f: byte 132: document 1 is of source 3; there are 2");
  EXPECT_EQ(changed([&] { put(132, uint32_t{2}); }), "") << "another source is no damage";
  EXPECT_THAT(changed([&] { put(140, uint32_t{1}); }), HasSubstr("byte 140: must be 0"));
  for (const uint64_t count : {uint64_t{0}, uint64_t{8}, ~uint64_t{0}})
    EXPECT_THAT(changed([&] { put(144, count); }), HasSubstr("byte 144: " + std::to_string(count) + " names of sources in 14 bytes"));
  EXPECT_THAT(changed([&] { put(144, uint64_t{3}); }), HasSubstr("byte 144: 3 names of sources, but there are 2"));
  EXPECT_THAT(changed([&] { put(152, ~uint64_t{0}); }), HasSubstr("byte 152: 18446744073709551615 bytes of names do not fit"));
  EXPECT_THAT(changed([&] { put(152, uint64_t{13}); }), HasSubstr("byte 172: must be 0: it ends the last name"));
  EXPECT_THAT(changed([&] { bytes_[173] = 'x'; }), HasSubstr("byte 173: must be 0: it ends the last name"));
  EXPECT_THAT(changed([&] { bytes_[175] = 'x'; }), HasSubstr("byte 175: must be 0"));
  EXPECT_THAT(changed([&] { bytes_[160] = '\0'; }), HasSubstr("byte 160: the name of a source must"));
  EXPECT_THAT(changed([&] { bytes_[161] = '\xff'; }), HasSubstr("byte 160: the name of a source must be UTF-8"));
  EXPECT_THAT(changed([&] { bytes_.replace(160, 14, std::string("ab\0abcdefg\0ab\0", 14)); }), HasSubstr("occur twice")) << "three names";
  EXPECT_THAT(changed([&] { put(8, uint32_t{1}); }), HasSubstr("bytes left over"));
}

TEST(TokenDataset, KnowsTheSourcesOfASetOfSeveralShards) {
  const TemporaryFolder folder;
  const std::vector<int32_t> ids = {1, 2, 3};
  const auto write = [&](const std::string& name, const std::vector<std::string>& sources) {
    ShardWriter writer(folder.file(name), Numbers(300), 3);  // a shard a document
    for (const std::string& source : sources) writer.add_document(ids, source);
    writer.finish();
    return folder.file(name);
  };
  const TokenDataset data(write("a", {"", "x", "y", "", "x"}));
  EXPECT_THAT(data.source_names(), ElementsAre("x", "y"));
  EXPECT_EQ(read_file(folder.file("a/00000.tokens"))[8], 1) << "no name is known yet";
  EXPECT_EQ(read_file(folder.file("a/00003.tokens"))[8], 2);
  const std::vector<int64_t> expected = {-1, 0, 1, -1, 0};
  for (int64_t token = 0; token < 15; ++token) {
    EXPECT_EQ(data.document_at(token), token / 3);
    EXPECT_EQ(data.source_at(token), expected[static_cast<size_t>(token / 3)]);
  }
  EXPECT_EQ(data.document_start(4), 12);
  EXPECT_EQ(data.count_document_starts(1, 13), 4);
  EXPECT_EQ(data.count_document_starts(0, 15), 5);
  EXPECT_EQ(data.source_sizes().back().tokens, 6);
  write("b", {"", "z", "y", "", "x"});
  std::filesystem::copy_file(folder.file("b/00002.tokens"), folder.file("a/00002.tokens"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("a")); }),
              HasSubstr("00002.tokens: byte 96: the names of sources do not continue those of " + folder.file("a/00001.tokens")));
}

TEST(TokenDataset, InMemoryHasSourcesToo) {
  const TokenDataset data("text", {1, 2, 3, 4}, {0, 1, 3}, Numbers(300), {{2, 0, 1}, {"x", "y"}});
  EXPECT_EQ(data.source_at(0), 1);
  EXPECT_EQ(data.source_at(2), -1);
  EXPECT_EQ(data.source_at(3), 0);
  const TokenDataset none("text", {1, 2, 3, 4}, {0, 1, 3}, Numbers(300));
  EXPECT_EQ(none.source_at(3), -1);
  EXPECT_EQ(none.hash(), data.hash());
}

TEST(SourceNames, HaveALimit) {
  SourceNames names;
  EXPECT_EQ(names.number(""), 0u);
  for (uint32_t i = 1; i <= 65535; ++i) ASSERT_EQ(names.number("source " + std::to_string(i)), i);
  EXPECT_EQ(names.number("source 7"), 7u);
  EXPECT_THAT(message_of<Error>([&] { names.number("one more"); }), HasSubstr("more than 65535 sources of documents"));
}

TEST(TokenDataset, RefusesSetsThatAreNotWholeOrOfAnotherTokenizer) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, size_t vocab) {
    ShardWriter writer(folder.file(name), Numbers(vocab), 4);
    const std::vector<int32_t> ids = {1, 2, 3};
    for (int i = 0; i < 3; ++i) writer.add_document(ids);
    writer.finish();
  };
  write("a", 300);
  write("b", 301);
  EXPECT_EQ(TokenDataset(folder.file("a")).tokens(), 9);
  EXPECT_NE(TokenDataset(folder.file("a")).hash(), TokenDataset(folder.file("b")).hash());
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("a")).require_tokenizer(Numbers(301)); }),
              HasSubstr("00000.tokens: byte 40: packed with another tokenizer (300 tokens"));
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("a/00000.tokens")); }), HasSubstr("byte 60: is not the last shard"));
  std::filesystem::copy_file(folder.file("b/00001.tokens"), folder.file("a/00001.tokens"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("a")); }), HasSubstr("00001.tokens: byte 40: made with another tokenizer"));
  std::filesystem::remove(folder.file("a/00001.tokens"));
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("a")); }),
              HasSubstr("00002.tokens: byte 56: is shard 2 where shard 1 was expected"));
  std::filesystem::remove(folder.file("a/00002.tokens"));
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("a")); }), HasSubstr("the set is not whole"));
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.path()); }), HasSubstr("no token shards"));
  EXPECT_THAT(message_of<Error>([&] { TokenDataset(folder.file("none")); }), HasSubstr("none"));
}

TEST(PackFiles, EncodesEveryDocumentAndEndsIt) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("a.txt"), "hello");
  write_file_atomic(folder.file("b.jsonl"), "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"two\"}\n");
  write_file_atomic(folder.file("c.fa"), ">x\nAC\nGT\n");
  const ByteTokenizer bytes;
  const PackReport report =
      pack_files({folder.file("a.txt"), folder.file("b.jsonl"), folder.file("c.fa")}, "auto", bytes, folder.file("out"));
  EXPECT_EQ(report.documents, 4);
  EXPECT_EQ(report.empty, 1);
  EXPECT_EQ(report.bytes, 5 + 3 + 3 + 4);
  EXPECT_EQ(report.tokens, 15 + 4);
  EXPECT_EQ(report.shards, 1);
  EXPECT_TRUE(report.end_of_text);
  const TokenDataset data(folder.file("out"));
  EXPECT_EQ(bytes.decode(all_tokens(data)), "hello<|endoftext|>one<|endoftext|>two<|endoftext|>ACGT<|endoftext|>");
  EXPECT_THAT(all_starts(data), ElementsAre(0, 6, 10, 14));
  EXPECT_THAT(message_of<Error>([&] { pack_files({}, "auto", bytes, folder.file("x")); }), HasSubstr("no files"));
}

// Text that spells the special token does not end a document.
TEST(PackFiles, TextCannotForgeTheEnd) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("a.txt"), "a<|endoftext|>b");
  const ByteTokenizer bytes;
  pack_files({folder.file("a.txt")}, "auto", bytes, folder.file("out"));
  const std::vector<int32_t> tokens = all_tokens(TokenDataset(folder.file("out")));
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 256), 1);
  EXPECT_EQ(tokens.back(), 256);
}

}  // namespace shards_test
}  // namespace based
