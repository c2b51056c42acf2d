#include "based/core/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "based/core/json.h"
#include "file_size_limit.h"
#include "temporary_folder.h"

namespace based {
namespace safetensors_test {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string with_length(uint64_t length, const std::string& rest) {
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + rest;
}
std::string file_of(const std::string& header, const std::string& data) { return with_length(header.size(), header + data); }

std::string error_of(const std::string& file) {
  return message_of<Error>([&] { parse_safetensors(bytes_of(file), "m.safetensors"); });
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

struct Case {
  const char* name;
  std::string file;
  std::string message;
};

void expect_errors(const std::vector<Case>& cases) {
  for (const Case& bad : cases) EXPECT_THAT(error_of(bad.file), HasSubstr("m.safetensors: " + bad.message)) << bad.name;
}

TEST(Safetensors, RefusesBadHeaders) {
  const std::string good = "{\"a\":" + entry("U8", "[2]", "[0,2]") + "}";
  expect_errors({
      {"empty", "", "not a safetensors file: 0 bytes"},
      {"shorter than the length", "1234567", "not a safetensors file: 7 bytes"},
      {"length past the end", with_length(100, "{}"), "the header's length is given as 100, but the file has only 10 bytes: truncated?"},
      {"length above the bound", with_length(100'000'001, "{}"), "the header's length is given as 100000001, more than the 100000000"},
      {"greatest length", with_length(UINT64_MAX, "{}"), "the header's length is given as 18446744073709551615, more than"},
      {"length that wraps around with 8", with_length(UINT64_MAX - 7, "{}"), "the header's length is given as 18446744073709551608"},
      {"length 0", with_length(0, ""), "the header does not begin with '{'"},
      {"length too small", with_length(good.size() - 1, good + "xx"), "header: byte "},
      {"length cuts the closing brace", with_length(1, "{}"), "the header ends in byte '{'"},
      {"space before the brace", file_of(" {}", ""), "the header does not begin with '{'"},
      {"an array", file_of("[]", ""), "the header does not begin with '{'"},
      {"padded with NUL", file_of(std::string("{}\0\0", 4), ""), "the header ends in byte '\\x00'; only spaces may follow"},
      {"padded with a line break", file_of("{} \n", ""), "the header ends in byte '\\x0a'; only spaces may follow"},
      {"NUL inside", file_of(std::string("{}\0}", 4), ""), "header: byte 3: not valid JSON: a NUL byte"},
      {"not JSON", file_of("{a}", ""), "header: byte 2: not valid JSON"},
      {"not UTF-8", file_of("{\"\xff\":1}", ""), "header: byte 3: not valid JSON"},
      {"two objects", file_of("{}{}", ""), "header: byte 3: not valid JSON"},
      {"deeply nested", file_of("{\"a\":" + std::string(1'000'000, '[') + "}", ""), "header: byte 69: nested deeper than 64"},
      {"same tensor twice", file_of("{\"a\":" + entry("U8", "[1]", "[0,1]") + ",\"a\":" + entry("U8", "[1]", "[1,2]") + "}", "xx"),
       "header: byte 56: duplicate key 'a'"},
      {"same key twice", file_of("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]}}", "x"),
       "header: byte 26: duplicate key 'dtype'"},
      {"metadata twice", file_of("{\"__metadata__\":{},\"__metadata__\":{}}", ""), "header: byte 33: duplicate key '__metadata__'"},
      {"metadata with a number", file_of("{\"__metadata__\":{\"k\":1}}", ""), "__metadata__: the value of 'k' must be a string"},
      {"metadata null", file_of("{\"__metadata__\":null}", ""), "__metadata__ must be a table of strings"},
      {"tensor called __metadata__", file_of("{\"__metadata__\":" + entry("U8", "[1]", "[0,1]") + "}", "x"),
       "__metadata__: the value of 'shape' must be a string"},
  });
}

TEST(Safetensors, RefusesBadEntries) {
  const auto one = [](const std::string& value, const std::string& data = "") { return file_of("{\"a\":" + value + "}", data); };
  const std::string max = "18446744073709551615";
  expect_errors({
      {"not a table", one("[]"), "tensor 'a': its entry must be a table"},
      {"null", one("null"), "tensor 'a': its entry must be a table"},
      {"no dtype", one("{\"shape\":[],\"data_offsets\":[0,0]}"), "tensor 'a': has no dtype"},
      {"no shape", one("{\"dtype\":\"U8\",\"data_offsets\":[0,0]}"), "tensor 'a': has no shape"},
      {"no offsets", one("{\"dtype\":\"U8\",\"shape\":[]}"), "tensor 'a': has no data_offsets"},
      {"another key", one("{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}"), "tensor 'a': unknown key 'x'"},
      {"unknown dtype", one(entry("F8_E4M3", "[1]", "[0,1]"), "x"), "tensor 'a': dtype 'F8_E4M3' is not supported (F64, I64, "},
      {"dtype in small letters", one(entry("u8", "[1]", "[0,1]"), "x"), "tensor 'a': dtype 'u8' is not supported"},
      {"dtype a number", one("{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,0]}"), "tensor 'a': dtype must be a string"},
      {"shape a number", one(entry("U8", "1", "[0,1]"), "x"), "tensor 'a': shape must be a list"},
      {"negative size", one(entry("U8", "[-1]", "[0,1]"), "x"), "tensor 'a': shape must hold whole numbers"},
      {"fractional size", one(entry("U8", "[1.0]", "[0,1]"), "x"), "tensor 'a': shape must hold whole numbers"},
      {"size in quotes", one(entry("U8", "[\"1\"]", "[0,1]"), "x"), "tensor 'a': shape must hold whole numbers"},
      {"size beyond 64 bits", one(entry("U8", "[18446744073709551616]", "[0,1]"), "x"), "tensor 'a': shape must hold whole numbers"},
      {"size beyond 63 bits", one(entry("U8", "[" + max + "]", "[0,1]"), "x"), "tensor 'a': the shape's " + max + " does not fit"},
      {"product wraps around to 0", one(entry("U8", "[4294967296,4294967296]", "[0,0]")), "tensor 'a': the product of its shape"},
      {"product wraps around to 1", one(entry("U8", "[6148914691236517205,3]", "[0,1]"), "x"), "tensor 'a': the product of its shape"},
      {"elements fit, bytes do not", one(entry("F32", "[4611686018427387904]", "[0,0]")), "tensor 'a': the product of its shape"},
      {"overflow beside a zero", one(entry("U8", "[9223372036854775807,2,0]", "[0,0]")), "tensor 'a': the product of its shape"},
      {"overflow after a zero", one(entry("U8", "[0,9223372036854775807,2]", "[0,0]")), "tensor 'a': the product of its shape"},
      {"one offset", one(entry("U8", "[1]", "[0]"), "x"), "tensor 'a': data_offsets must be two numbers"},
      {"three offsets", one(entry("U8", "[1]", "[0,1,1]"), "x"), "tensor 'a': data_offsets must be two numbers"},
      {"offsets backwards", one(entry("U8", "[1]", "[1,0]"), "x"), "tensor 'a': data_offsets 1 to 0: they run backwards"},
      {"end past the data", one(entry("U8", "[2]", "[0,2]"), "x"), "tensor 'a': data_offsets 0 to 2 leave the 1 bytes of data"},
      {"greatest end", one(entry("U8", "[1]", "[0," + max + "]"), "x"), "tensor 'a': data_offsets 0 to " + max + " leave"},
      {"greatest begin and end", one(entry("U8", "[0]", "[" + max + "," + max + "]")), "tensor 'a': data_offsets " + max + " to " + max},
      {"size and range differ", one(entry("F32", "[1]", "[0,3]"), "xxx"),
       "tensor 'a': data_offsets 0 to 3, but its shape and dtype F32 need 4 bytes"},
      {"control character in the name", file_of("{\"a\\u001bb\":" + entry("U8", "[1]", "[0,1]") + "}", "x"),
       "tensor 'a\\x1bb': control characters in the name"},
      {"C1 control character", file_of("{\"a\\u0085\":" + entry("U8", "[1]", "[0,1]") + "}", "x"),
       "tensor 'a\\xc2\\x85': control characters in the name"},
  });
}

TEST(Safetensors, RefusesOverlapsHolesAndTrailers) {
  const auto two = [](const std::string& a, const std::string& b, const std::string& data) {
    return file_of("{\"a\":" + a + ",\"b\":" + b + "}", data);
  };
  expect_errors({
      {"overlap", two(entry("U8", "[4]", "[0,4]"), entry("U8", "[4]", "[2,6]"), "xxxxxx"),
       "tensor 'b': its bytes from 2 overlap those of tensor 'a'"},
      {"the same bytes twice", two(entry("U8", "[4]", "[0,4]"), entry("U8", "[4]", "[0,4]"), "xxxx"),
       "tensor 'b': its bytes from 0 overlap those of tensor 'a'"},
      {"empty tensor inside another", two(entry("U8", "[4]", "[0,4]"), entry("U8", "[0]", "[2,2]"), "xxxx"),
       "tensor 'b': its bytes from 2"},
      {"hole", two(entry("U8", "[1]", "[0,1]"), entry("U8", "[1]", "[2,3]"), "xxx"), "bytes 1 to 2 of the data belong to no tensor"},
      {"hole at the start", file_of("{\"a\":" + entry("U8", "[1]", "[1,2]") + "}", "xx"), "bytes 0 to 1 of the data belong to no tensor"},
      {"trailer", file_of("{\"a\":" + entry("U8", "[1]", "[0,1]") + "}", "xyz"), "2 bytes after the last tensor belong to no tensor"},
      {"data without tensors", file_of("{}", "x"), "1 bytes after the last tensor belong to no tensor"},
      {"empty tensor past the end", file_of("{\"a\":" + entry("U8", "[0]", "[1,1]") + "}", ""), "tensor 'a': data_offsets 1 to 1 leave"},
  });
}

struct Sample {
  std::vector<double> f64 = {1, 2, 3};
  std::vector<float> f32 = {0.5f, -1, 3, 4, 5, 6};
  std::vector<uint16_t> bf16 = {0x3f80};
  std::vector<uint8_t> u8 = {7};

  std::vector<TensorView> views() const {
    return {{"w.u8", DType::U8, {1}, std::as_bytes(std::span(u8))},
            {"w.f32", DType::F32, {2, 3}, std::as_bytes(std::span(f32))},
            {"a.f64", DType::F64, {3}, std::as_bytes(std::span(f64))},
            {"empty", DType::I64, {0, 4}, {}},
            {"bf16", DType::BF16, {1, 1, 1}, std::as_bytes(std::span(bf16))}};
  }
};

// An entry takes about 50 bytes, so that a header of ten million entries exceeds the format's limit. More than 100,000 entries are checked.
TEST(Safetensors, ManyOverlappingTensorsAreRefused) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) header += (i ? ",\"" : "\"") + std::to_string(i) + "\":" + entry("U8", "[1]", "[0,1]");
  EXPECT_THAT(error_of(file_of(header + "}", "x")), HasSubstr("overlap"));
  EXPECT_THAT(error_of(with_length(50 * uint64_t{10'000'000}, header)), HasSubstr("more than the 100000000 allowed"));
}

// A changed byte anywhere in the header gives either an Error or a file in which every byte belongs to a tensor.
TEST(Safetensors, AnyChangedByteIsReadWholeOrRefused) {
  const TemporaryFolder folder;
  write_safetensors(folder.file("m"), Sample().views(), {{"k", "v"}});
  const std::string text = read_file(folder.file("m"));
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'\0', '\x01', '\x20', '"', '0', '9', '[', '{', '}', '\x7f', '\x80', '\xff'}) {
      std::string changed = text;
      changed[at] = byte;
      size_t bytes = 0;
      const std::string refusal = message_of<Error>([&] {
        for (const TensorView& tensor : parse_safetensors(bytes_of(changed), "m.safetensors").tensors) bytes += tensor.bytes.size();
      });
      EXPECT_TRUE(refusal.empty() ? bytes == 24 + 24 + 2 + 1 : refusal.starts_with("m.safetensors: ")) << at << ": " << refusal;
    }
  }
}

TEST(Safetensors, AcceptsWhatIsLegal) {
  EXPECT_EQ(error_of(file_of("{}", "")), "");
  EXPECT_EQ(error_of(file_of("{}    ", "")), "");
  const std::string header = "{\"z\":" + entry("F32", "[0,1024]", "[3,3]") +
                             ",\"__metadata__\":{\"format\":\"pt\"},\"s\":" + entry("BOOL", "[]", "[0,1]") +
                             ",\"n\\u00e9\":" + entry("BF16", "[1,1]", "[1,3]") + "}";
  const std::string file = file_of(header, "\x01\x02\x03");
  const SafetensorsIndex index = parse_safetensors(bytes_of(file), "m");
  ASSERT_EQ(index.tensors.size(), 3u);
  EXPECT_EQ(index.metadata.at("format"), "pt");
  EXPECT_EQ(index.tensors[0].name, "s");
  EXPECT_TRUE(index.tensors[0].shape.empty());
  EXPECT_EQ(index.tensors[1].name, "n\xc3\xa9");
  EXPECT_EQ(index.tensors[1].dtype, DType::BF16);
  EXPECT_EQ(std::to_integer<int>(index.tensors[1].bytes[0]), 2);
  EXPECT_EQ(index.tensors[2].bytes.size(), 0u);
}

TEST(Safetensors, WrittenThenReadIsTheSame) {
  const TemporaryFolder folder;
  const Sample sample;
  const std::string path = folder.file("m.safetensors");
  write_safetensors(path, sample.views(), {{"format", "pt"}, {"note", "caf\xc3\xa9 \"quoted\"\n"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata_at("note"), "caf\xc3\xa9 \"quoted\"\n");
  ASSERT_EQ(file.tensors().size(), 5u);
  for (const TensorView& want : sample.views()) {
    const TensorView& got = file.at(want.name);
    EXPECT_EQ(got.dtype, want.dtype);
    EXPECT_EQ(got.shape, want.shape);
    ASSERT_EQ(got.bytes.size(), want.bytes.size());
    EXPECT_TRUE(std::equal(want.bytes.begin(), want.bytes.end(), got.bytes.begin())) << want.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.bytes.data()) % static_cast<uintptr_t>(dtype_bytes(got.dtype)), 0u) << want.name;
  }
  EXPECT_EQ(folder.entries(), 1u) << "no temporary left";
}

TEST(Safetensors, EqualContentMakesEqualFiles) {
  const TemporaryFolder folder;
  const Sample sample;
  std::vector<TensorView> views = sample.views();
  write_safetensors(folder.file("a"), views, {{"x", "1"}, {"y", "2"}});
  std::reverse(views.begin(), views.end());
  write_safetensors(folder.file("b"), views, {{"y", "2"}, {"x", "1"}});
  const std::string text = read_file(folder.file("a"));
  EXPECT_EQ(text, read_file(folder.file("b")));
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(parse_json(std::string_view(text).substr(8, length), "header").begin().key(), "__metadata__");
}

TEST(Safetensors, TruncatedAnywhereIsAnError) {
  const TemporaryFolder folder;
  write_safetensors(folder.file("m"), Sample().views(), {{"k", "v"}});
  const std::string text = read_file(folder.file("m"));
  ASSERT_EQ(error_of(text), "");
  for (size_t size = 0; size < text.size(); ++size) {
    const std::string cut(text.data(), size);  // a separate allocation, so that a read past the end is detected
    EXPECT_NE(error_of(cut), "") << size;
  }
  EXPECT_NE(error_of(text + '\0'), "");
}

TEST(Safetensors, WriterRefusesWhatReadersWould) {
  const TemporaryFolder folder;
  const uint8_t one = 1;
  const auto write = [&](const std::vector<std::string>& names, const std::map<std::string, std::string>& metadata = {}) {
    std::vector<TensorView> views;
    views.reserve(names.size());
    for (const std::string& name : names) views.push_back({name, DType::U8, {1}, std::as_bytes(std::span(&one, 1))});
    return message_of<Error>([&] { write_safetensors(folder.file("m"), views, metadata); });
  };
  EXPECT_THAT(write({"__metadata__"}), HasSubstr("cannot write tensor '__metadata__': the format keeps this name for itself"));
  EXPECT_THAT(write({"a\nb"}), HasSubstr("cannot write tensor 'a\\x0ab': control characters in the name"));
  EXPECT_THAT(write({"a\xff"}), HasSubstr("cannot write tensor 'a\\xff': the name is not UTF-8"));
  EXPECT_THAT(write({"a", "b", "a"}), HasSubstr("cannot write tensor 'a' twice"));
  EXPECT_THAT(write({"a"}, {{"k", "\xff"}}), HasSubstr("cannot write metadata 'k': not UTF-8"));
  EXPECT_EQ(folder.entries(), 0u) << "nothing was written";
}

TEST(Safetensors, WhereverTheDiskIsFullTheOldFileStays) {
  const TemporaryFolder folder;
  const std::string path = folder.file("m");
  write_safetensors(path, Sample().views());
  const std::string before = read_file(path);
  for (size_t room = 0; room < before.size(); room += 7) {
    const FileSizeLimit limit(room);
    EXPECT_EQ(message_of<Error>([&] { write_safetensors(path, Sample().views()); }), path + ": cannot write: File too large") << room;
  }
  EXPECT_EQ(read_file(path), before);
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Safetensors, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  write_safetensors(folder.file("m"), {});
  SafetensorsFile file(folder.file("m"));
  EXPECT_EQ(file.find("w"), nullptr);
  EXPECT_EQ(message_of<Error>([&] { file.at("w"); }), folder.file("m") + ": has no tensor 'w'");
  EXPECT_EQ(message_of<Error>([&] { file.metadata_at("config"); }), folder.file("m") + ": has no metadata 'config'");
  EXPECT_THAT(message_of<Error>([&] { SafetensorsFile(folder.file("absent")); }), HasSubstr("absent: cannot open: No such file"));
  EXPECT_THAT(message_of<Error>([&] { SafetensorsFile(folder.path().string()); }), HasSubstr("is a folder, not a file"));
}

TEST(Safetensors, ViewsSurviveAMove) {
  const TemporaryFolder folder;
  write_safetensors(folder.file("m"), Sample().views());
  SafetensorsFile first(folder.file("m"));
  const std::byte* address = first.at("w.f32").bytes.data();
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.at("w.f32").bytes.data(), address);
}

TEST(Safetensors, FindsTheFirstValueThatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> f32 = {1, -3e38f, inf, 0};
  const std::vector<double> f64 = {std::nan(""), 1};
  const std::vector<uint16_t> half = {0x7bff, 0xfc01};  // the largest fp16 number, then an fp16 NaN; as bf16 both are finite
  const auto scan = [](DType dtype, auto& values) {
    return first_not_finite({"x", dtype, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values))});
  };
  EXPECT_EQ(scan(DType::F32, f32), 2);
  EXPECT_EQ(scan(DType::F64, f64), 0);
  EXPECT_EQ(scan(DType::F16, half), 1);
  EXPECT_EQ(scan(DType::BF16, half), std::nullopt);
  EXPECT_EQ(scan(DType::I32, f32), std::nullopt);
}

}  // namespace safetensors_test
}  // namespace based
