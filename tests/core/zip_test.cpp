#include "based/core/zip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "temporary_folder.h"

namespace based {
namespace zip_test {

using ::testing::HasSubstr;

std::string text_of(std::span<const std::byte> bytes) {
  return bytes.empty() ? std::string() : std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// An archive of two members.
std::string two_members() {
  const TemporaryFolder folder;
  ZipWriter zip(folder.file("two.zip"));
  zip.add("a/first", std::string_view("hello"));
  zip.add("a/second", std::string_view("12345678"));
  zip.commit();
  return read_file(folder.file("two.zip"));
}

std::string error_of(const std::string& file) {
  return message_of<Error>([&] { parse_zip(bytes_of(file), "x.zip"); });
}

// The archive with another number at `at`; negative: counted from the end.
template <class T>
std::string with(std::string file, int64_t at, T number) {
  std::memcpy(file.data() + (at < 0 ? static_cast<int64_t>(file.size()) + at : at), &number, sizeof number);
  return file;
}

TEST(Zip, HasTheUsualChecksum) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);
  EXPECT_EQ(crc32(bytes_of("56789"), crc32(bytes_of("1234"))), 0xcbf43926U);
  EXPECT_EQ(crc32({}), 0U);
}

TEST(Zip, ReadsWhatItWrote) {
  const std::string file = two_members();
  const std::vector<ZipMember> members = parse_zip(bytes_of(file), "x.zip");
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ(members[0].name, "a/first");
  EXPECT_EQ(text_of(members[0].bytes), "hello");
  EXPECT_EQ(text_of(members[1].bytes), "12345678");
  for (const ZipMember& member : members) {
    EXPECT_EQ(member.offset % 64, 0U);
    check_crc(member, "x.zip");
  }
  EXPECT_EQ(two_members(), file) << "equal content, equal bytes";
}

TEST(Zip, FindsTheEndBeforeAComment) {
  std::string file = with<uint16_t>(two_members(), -2, 5) + "hello";
  EXPECT_EQ(parse_zip(bytes_of(file), "x.zip").size(), 2U);
}

TEST(Zip, SaysWhichMemberIsDamaged) {
  std::string file = two_members();
  file[64] ^= 1;
  const std::vector<ZipMember> members = parse_zip(bytes_of(file), "x.zip");
  EXPECT_THAT(message_of<Error>([&] { check_crc(members[0], "x.zip"); }), HasSubstr("x.zip: offset 64: member 'a/first' is damaged"));
}

TEST(Zip, RefusesEveryTruncation) {
  const std::string file = two_members();
  for (size_t size = 0; size < file.size(); ++size) EXPECT_THAT(error_of(file.substr(0, size)), HasSubstr("x.zip: ")) << size;
}

// Offsets from the end of the archive: its last structure has 22 bytes; the two entries of the directory before it 46 + 7 and 46 + 8.
constexpr int64_t kSecondEntry = -22 - 54, kFirstEntry = kSecondEntry - 53;

TEST(Zip, RefusesStructuresThatContradictEachOther) {
  const std::string good = two_members();
  ASSERT_EQ(error_of(good), "");
  struct Case {
    std::string file, message;
  };
  const std::vector<Case> cases{
      {with<uint16_t>(good, kFirstEntry + 10, 8), "member 'a/first': is compressed (method 8)"},
      {with<uint16_t>(good, kFirstEntry + 8, 1), "member 'a/first': is encrypted"},
      {with<uint32_t>(good, kFirstEntry + 24, 4), "member 'a/first': is compressed"},
      {with<uint32_t>(with<uint32_t>(good, kFirstEntry + 20, 5000), kFirstEntry + 24, 5000), "5000 bytes at 64 leave the archive"},
      {with<uint32_t>(good, kSecondEntry + 42, 0), "has another name in its own header"},
      {with<uint32_t>(good, kSecondEntry + 42, 3), "its header at 3 is none"},
      {with<uint32_t>(good, kSecondEntry + 42, 0xfffffff0), "its header at 4294967280 is none"},
      {with<uint32_t>(good, kSecondEntry + 42, 0xffffffff), "zip64's extra field, which is missing"},
      {with<uint16_t>(good, kFirstEntry + 28, 60000), "an entry leaves the central directory"},
      {with<uint16_t>(good, -22 + 10, 3), "more members are stated than the central directory can hold"},
      {with<uint16_t>(good, -22 + 10, 1), "the central directory has another length"},
      {with<uint16_t>(good, -22 + 10, 0xffff), "a zip64 structure, which is missing"},
      {with<uint16_t>(good, -22 + 4, 1), "the archive is in several parts"},
      {with<uint32_t>(good, -22 + 16, 5), "the central directory does not end where its end begins"},
      {with<uint32_t>(good, kFirstEntry, 0), "no entry of a central directory"},
  };
  for (const Case& bad : cases) EXPECT_THAT(error_of(bad.file), HasSubstr(bad.message));
}

std::string archive_of(const std::vector<std::string>& names) {
  const TemporaryFolder folder;
  ZipWriter zip(folder.file("x.zip"));
  for (const std::string& name : names) zip.add(name, std::string_view("x"));
  zip.commit();
  return read_file(folder.file("x.zip"));
}

TEST(Zip, RefusesNamesThatAreNoPlainPaths) {
  for (const char* name : {"/etc/passwd", "../x", "a/../b", "a\\b", "a\nb"})
    EXPECT_THAT(error_of(archive_of({name})), HasSubstr("the name is empty, absolute, or no plain path")) << name;
  EXPECT_THAT(error_of(archive_of({"a", "a"})), HasSubstr("a second member 'a'"));
}

// The second member's data are made longer than the gap to the third.
TEST(Zip, RefusesMembersThatOverlap) {
  std::string file = two_members();
  file = with<uint32_t>(with<uint32_t>(file, kFirstEntry + 20, 70), kFirstEntry + 24, 70);
  EXPECT_THAT(error_of(file), HasSubstr("members 'a/first' and 'a/second' overlap"));
}

// The structures of archives above 4 GiB, in a small archive: an end with all fields in the zip64 structure, and an entry with all fields
// in the extra field.
TEST(Zip, ReadsZip64) {
  std::string file = two_members();
  const std::string end(file.substr(file.size() - 22));
  const size_t directory = file.size() - 22 - 107;
  std::string entry = file.substr(directory, 53);
  std::string extra("\x01\x00\x18\x00", 4);
  const auto append = [](std::string& text, auto number) { text.append(reinterpret_cast<const char*>(&number), sizeof number); };
  append(extra, uint64_t{5});
  append(extra, uint64_t{5});
  append(extra, uint64_t{0});
  for (const int64_t at : {20, 24, 42}) entry = with<uint32_t>(entry, at, 0xffffffff);
  entry = with<uint16_t>(entry, 30, static_cast<uint16_t>(extra.size())) + extra;
  std::string large = file.substr(0, directory) + entry + file.substr(directory + 53, 54);
  const uint64_t end64 = large.size();
  append(large, uint32_t{0x06064b50});
  append(large, uint64_t{44});
  append(large, uint32_t{45});  // both versions
  append(large, uint64_t{0});
  append(large, uint64_t{2});
  append(large, uint64_t{2});
  append(large, uint64_t{end64 - directory});
  append(large, uint64_t{directory});
  append(large, uint32_t{0x07064b50});
  append(large, uint32_t{0});
  append(large, end64);
  append(large, uint32_t{1});
  large += with<uint32_t>(with<uint32_t>(with<uint16_t>(with<uint16_t>(end, 8, 0xffff), 10, 0xffff), 12, 0xffffffff), 16, 0xffffffff);
  const std::vector<ZipMember> members = parse_zip(bytes_of(large), "x.zip");
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ(text_of(members[0].bytes), "hello");
  EXPECT_THAT(error_of(with<uint64_t>(large, static_cast<int64_t>(end64) + 48, UINT64_MAX - 5)), HasSubstr("x.zip: offset "));
  EXPECT_THAT(error_of(with<uint64_t>(large, static_cast<int64_t>(end64) + 32, UINT64_MAX)), HasSubstr("members, more than the"));
}

}  // namespace zip_test
}  // namespace based
