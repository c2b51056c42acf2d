#include "based/core/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "temporary_folder.h"

namespace based {
namespace manifest_test {

using ::testing::HasSubstr;

Manifest two_files() {
  return {{{"a.json", 3, xxh3_128(std::as_bytes(std::span(std::string_view("abc")))).hex()}, {"b.bin", 0, xxh3_128({}).hex()}}};
}

std::string refusal(const std::string& text) {
  return message_of<Error>([&] { parse_manifest(text, "m"); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Manifest, WrittenThenReadIsTheSame) {
  const Manifest read = parse_manifest(manifest_text(two_files()), "m");
  ASSERT_EQ(read.files.size(), 2u);
  EXPECT_EQ(read.files[0].name, "a.json");
  EXPECT_EQ(read.files[0].size, 3);
  EXPECT_EQ(read.files[1].hash, two_files().files[1].hash);
  EXPECT_TRUE(parse_manifest(manifest_text({}), "m").files.empty());
}

TEST(Manifest, EveryChangedBitAndEveryCutIsRefused) {
  const std::string text = manifest_text(two_files());
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_NE(refusal(text.substr(0, i)), "") << "cut at " << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_NE(refusal(changed), "") << "byte " << i << " bit " << bit;
    }
  }
}

TEST(Manifest, WhatMakesNoSenseIsNamed) {
  const std::string text = manifest_text(two_files());
  const auto name = [&](const std::string& in_its_place) { return refusal(replaced(text, "a.json", in_its_place)); };
  EXPECT_THAT(refusal("[]"), HasSubstr("m: is no manifest"));
  EXPECT_THAT(refusal("{}"), HasSubstr("m: is no manifest"));
  EXPECT_THAT(refusal(replaced(text, "\"version\": 1", "\"version\": 2")), HasSubstr("has version 2; this program reads version 1"));
  EXPECT_THAT(name("../a"), HasSubstr("'../a' is no name of a file"));
  EXPECT_THAT(name(".."), HasSubstr("is no name of a file"));
  EXPECT_THAT(name("manifest.json"), HasSubstr("is no name of a file"));
  EXPECT_THAT(name("z"), HasSubstr("in the order of their names, each once: 'b.bin'"));
  EXPECT_THAT(name("b.bin"), HasSubstr("each once"));
  EXPECT_THAT(refusal(replaced(text, "\"size\": 3", "\"size\": -3")), HasSubstr("'a.json': the size is negative"));
  EXPECT_THAT(refusal(replaced(text, "\"size\": 3", "\"size\": 18446744073709551615")), HasSubstr("does not fit into 63 bits"));
  EXPECT_THAT(refusal(replaced(text, "\"size\": 3", "\"size\": 3.5")), HasSubstr("'size' has the wrong type"));
  EXPECT_THAT(refusal(replaced(text, "\"size\": 3", "\"size\": 4")), HasSubstr("its own hash does not fit"));
  EXPECT_THAT(refusal(replaced(text, two_files().files[0].hash, "xyz")), HasSubstr("must be 32 hexadecimal digits"));
  EXPECT_THAT(refusal(replaced(text, "\"files\"", "\"fils\"")), HasSubstr("has no 'files'"));
}

TEST(Manifest, AFolderIsVerifiedFileByFile) {
  const TemporaryFolder folder;
  const std::string here = folder.path().string();
  write_file_atomic(folder.file("weights"), "0123456789");
  write_file_atomic(folder.file("state"), "");
  EXPECT_THAT(message_of<Error>([&] { verify_manifest(here); }), HasSubstr("manifest.json: cannot open"));
  write_manifest(here);
  write_manifest(here);  // the second manifest must not list the first
  verify_manifest(here);
  write_file_atomic(folder.file("notes"), "of the user");
  verify_manifest(here);
  write_file_atomic(folder.file("weights"), "0123456788");
  EXPECT_THAT(message_of<Error>([&] { verify_manifest(here); }), HasSubstr("weights: is damaged"));
  write_file_atomic(folder.file("weights"), "012345678");
  EXPECT_THAT(message_of<Error>([&] { verify_manifest(here); }), HasSubstr("weights: has 9 bytes, the manifest says 10"));
  std::filesystem::remove(folder.file("weights"));
  EXPECT_THAT(message_of<Error>([&] { verify_manifest(here); }), HasSubstr("weights: cannot open"));
}

}  // namespace manifest_test
}  // namespace based
