#include "based/core/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "based/core/hash.h"
#include "file_size_limit.h"
#include "temporary_folder.h"

namespace based {
namespace state_file_test {

using ::testing::HasSubstr;

std::string error_of(const std::string& file) {
  return message_of<Error>([&] { parse_state_file(std::as_bytes(std::span(file)), "s.state"); });
}

// A state file with any header and payload but a valid size and checksum, so that the checks after the checksum are reached.
std::string sealed(std::string header, const std::string& payload, uint32_t version = 1) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_size = header.size();
  std::string text = "BASEDST1";
  text.append(reinterpret_cast<const char*>(&version), 4).append(4, '\0');
  const uint64_t size = 32 + header.size() + payload.size() + 16;
  text.append(reinterpret_cast<const char*>(&size), 8).append(reinterpret_cast<const char*>(&header_size), 8);
  text += header + payload;
  const Hash128 hash = xxh3_128(std::as_bytes(std::span(text)));
  text.append(reinterpret_cast<const char*>(&hash.low), 8).append(reinterpret_cast<const char*>(&hash.high), 8);
  return text;
}

struct Sample {
  std::vector<float> state = {1, 2, 3, 4, 5, 6};
  std::vector<uint16_t> ring = {0x3f80, 0x4000, 0x4040};
  StateSnapshot snapshot() const {
    return {"0123456789abcdef0123456789abcdef",
            {5, 0, 50256},
            {{"layers.0.s", DType::F32, {2, 3}, std::as_bytes(std::span(state))},
             {"layers.1.ring", DType::BF16, {3}, std::as_bytes(std::span(ring))},
             {"layers.2.cache", DType::F32, {0, 8}, {}}},
            {{"mixers", "taylor window"}}};
  }
};

TEST(StateFile, WrittenThenReadIsTheSame) {
  const TemporaryFolder folder;
  const Sample sample;
  for (const int64_t big : {int64_t{7}, int64_t{1} << 40}) {
    StateSnapshot want = sample.snapshot();
    want.token_ids.push_back(big);
    write_state_file(folder.file("s"), want);
    const StateFile file(folder.file("s"));
    const StateSnapshot& got = file.snapshot();
    EXPECT_EQ(got.model_hash, want.model_hash);
    EXPECT_EQ(got.token_ids, want.token_ids);
    EXPECT_EQ(got.metadata, want.metadata);
    ASSERT_EQ(got.tensors.size(), want.tensors.size());
    for (size_t i = 0; i < want.tensors.size(); ++i) {
      EXPECT_EQ(got.tensors[i].name, want.tensors[i].name);
      EXPECT_EQ(got.tensors[i].dtype, want.tensors[i].dtype);
      EXPECT_EQ(got.tensors[i].shape, want.tensors[i].shape);
      EXPECT_TRUE(std::ranges::equal(got.tensors[i].bytes, want.tensors[i].bytes));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(got.tensors[i].bytes.data()) % 8, 0u) << "aligned in the mapping";
    }
  }
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(StateFile, EqualSnapshotsMakeEqualFiles) {
  const TemporaryFolder folder;
  write_state_file(folder.file("a"), Sample().snapshot());
  write_state_file(folder.file("b"), Sample().snapshot());
  EXPECT_EQ(read_file(folder.file("a")), read_file(folder.file("b")));
}

TEST(StateFile, TheEmptyStateIsFine) {
  const TemporaryFolder folder;
  write_state_file(folder.file("s"), {});
  EXPECT_TRUE(StateFile(folder.file("s")).snapshot().tensors.empty());
}

TEST(StateFile, AnotherModelsStateIsRefused) {
  const TemporaryFolder folder;
  write_state_file(folder.file("s"), Sample().snapshot());
  const StateFile file(folder.file("s"));
  EXPECT_NO_THROW(file.require_model("0123456789abcdef0123456789abcdef"));
  EXPECT_EQ(message_of<Error>([&] { file.require_model("ffff"); }),
            folder.file("s") + ": made by model 0123456789abcdef0123456789abcdef, not by this one, ffff");
}

TEST(StateFile, TruncatedAnywhereSaysSo) {
  const TemporaryFolder folder;
  write_state_file(folder.file("s"), Sample().snapshot());
  const std::string text = read_file(folder.file("s"));
  ASSERT_EQ(error_of(text), "");
  EXPECT_THAT(error_of(""), HasSubstr("not a state file"));
  for (size_t size = 1; size < text.size(); ++size) {
    EXPECT_THAT(error_of(std::string(text.data(), size)), HasSubstr("s.state: truncated at byte " + std::to_string(size))) << size;
  }
  EXPECT_THAT(error_of(text + "x"), HasSubstr("1 bytes after its end at byte " + std::to_string(text.size())));
}

TEST(StateFile, EveryFlippedBitIsSeen) {
  const TemporaryFolder folder;
  write_state_file(folder.file("s"), Sample().snapshot());
  std::string text = read_file(folder.file("s"));
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(error_of(text), "") << "bit " << bit;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
  text[text.size() - 30] = static_cast<char>(text[text.size() - 30] ^ 1);
  EXPECT_THAT(error_of(text), HasSubstr("s.state: damaged: the checksum is "));
}

struct Case {
  const char* name;
  std::string file;
  std::string message;
};

TEST(StateFile, RefusesWhatMakesNoSense) {
  const auto with = [](const std::string& model, const std::string& tokens, const std::string& tensors, const std::string& payload = "",
                       const std::string& metadata = "{}") {
    return sealed("{\"model\":" + model + ",\"tokens\":" + tokens + ",\"tensors\":" + tensors + ",\"metadata\":" + metadata + "}", payload);
  };
  const std::string m = "\"x\"", t = R"({"dtype":"I32","count":0})";
  const auto tensor = [](const std::string& dtype, const std::string& shape) {
    return "{\"name\":\"a\",\"dtype\":\"" + dtype + "\",\"shape\":" + shape + "}";
  };
  ASSERT_EQ(error_of(with(m, t, "[]")), "");
  const std::vector<Case> cases = {
      {"another file", std::string(100, 'x'), "not a state file (it does not begin with BASEDST1)"},
      {"a newer version", sealed("{}", "", 2), "state file version 2; this program reads version 1"},
      {"header not JSON", sealed("{", ""), "header: byte 9: not valid JSON"},
      {"header a list", sealed("[]", ""), "the header must be a table"},
      {"empty header", sealed("{}", ""), "the header has no model"},
      {"unknown key", sealed("{\"x\":1}", ""), "the header: unknown key 'x'"},
      {"same key twice", sealed("{\"model\":1,\"model\":1}", ""), "header: byte 18: duplicate key 'model'"},
      {"model a number", with("1", t, "[]"), "the header: model must be a string"},
      {"tokens a list", with(m, "[]", "[]"), "tokens must be a table"},
      {"tokens as floats", with(m, R"({"dtype":"F32","count":0})", "[]"), "tokens: dtype must be I32 or I64, not F32"},
      {"negative count", with(m, R"({"dtype":"I32","count":-1})", "[]"), "tokens: count must be a whole number"},
      {"count too large", with(m, R"({"dtype":"I32","count":9223372036854775807})", "[]"),
       "tokens: count 9223372036854775807 is too large"},
      {"count past the end", with(m, R"({"dtype":"I32","count":3})", "[]", "12345678"), "tokens needs 12 bytes, but only 8 are left"},
      {"negative id", with(m, R"({"dtype":"I32","count":2})", "[]", std::string("\1\0\0\0\xff\xff\xff\xff", 8)),
       "tokens: id -1 at place 1"},
      {"tensors a table", with(m, t, "{}"), "the header: tensors must be a list"},
      {"tensor a string", with(m, t, "[\"a\"]"), "tensors: each entry must be a table"},
      {"unknown dtype", with(m, t, "[" + tensor("F8", "[]") + "]"), "tensor 'a': unknown dtype 'F8'"},
      {"negative size", with(m, t, "[" + tensor("F32", "[-1]") + "]"), "tensor 'a': a size of its shape must be a whole number"},
      {"size beyond 63 bits", with(m, t, "[" + tensor("F32", "[9223372036854775808]") + "]"), "tensor 'a': a size of its shape must be"},
      {"product wraps around", with(m, t, "[" + tensor("U8", "[4294967296,4294967296]") + "]"), "tensor 'a': the product of its shape"},
      {"elements fit, bytes do not", with(m, t, "[" + tensor("F64", "[2305843009213693952]") + "]"),
       "tensor 'a': the product of its shape"},
      {"tensor past the end", with(m, t, "[" + tensor("F32", "[3]") + "]", "12345678"), "tensor 'a' needs 12 bytes, but only 8 are left"},
      {"bytes left over", with(m, t, "[" + tensor("F32", "[2]") + "]", "1234567812345678"), "8 bytes are left over after the last tensor"},
      {"same tensor twice", with(m, t, "[" + tensor("U8", "[0]") + "," + tensor("U8", "[0]") + "]"), "tensor 'a' occurs twice"},
      {"control character", with(m, t, R"([{"name":"\n","dtype":"U8","shape":[0]}])"), "tensor '\\x0a': control characters in the name"},
      {"metadata a number", with(m, t, "[]", "", "{\"k\":1}"), "metadata: the value of 'k' must be a string"},
  };
  for (const Case& bad : cases) EXPECT_THAT(error_of(bad.file), HasSubstr("s.state: " + bad.message)) << bad.name;
}

TEST(StateFile, AHeaderLengthPastTheEndIsRefused) {
  std::string text = sealed("{}", "");
  const uint64_t length = UINT64_MAX - 3;
  std::memcpy(text.data() + 24, &length, 8);
  const Hash128 hash = xxh3_128(std::as_bytes(std::span(text)).first(text.size() - 16));
  std::memcpy(text.data() + text.size() - 16, &hash.low, 8);
  std::memcpy(text.data() + text.size() - 8, &hash.high, 8);
  EXPECT_THAT(error_of(text), HasSubstr("the header needs 18446744073709551612 bytes, but only 8 are left"));
}

TEST(StateFile, WhereverTheDiskIsFullTheOldFileStays) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s");
  write_state_file(path, Sample().snapshot());
  const std::string before = read_file(path);
  for (size_t room = 0; room < before.size(); room += 7) {
    const FileSizeLimit limit(room);
    EXPECT_EQ(message_of<Error>([&] { write_state_file(path, Sample().snapshot()); }), path + ": cannot write: File too large") << room;
  }
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(StateFile, WriterRefusesWhatTheReaderWould) {
  const TemporaryFolder folder;
  StateSnapshot snapshot;
  snapshot.tensors = {{"a", DType::U8, {0}, {}}, {"a", DType::U8, {0}, {}}};
  EXPECT_THAT(message_of<Error>([&] { write_state_file(folder.file("s"), snapshot); }),
              HasSubstr("cannot write tensor 'a': the name occurs twice"));
  snapshot.tensors = {{"a\n", DType::U8, {0}, {}}};
  EXPECT_THAT(message_of<Error>([&] { write_state_file(folder.file("s"), snapshot); }),
              HasSubstr("cannot write tensor 'a\\x0a': the name is not"));
  snapshot = {};
  snapshot.token_ids = {3, -1};
  EXPECT_THAT(message_of<Error>([&] { write_state_file(folder.file("s"), snapshot); }), HasSubstr("token id -1 at place 1 is negative"));
  EXPECT_EQ(folder.entries(), 0u);
}

}  // namespace state_file_test
}  // namespace based
