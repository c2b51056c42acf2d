#include "based/core/zip.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "based/core/text.h"

namespace based {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint32_t kLocalHeader = 0x04034b50, kCentralHeader = 0x02014b50, kEndRecord = 0x06054b50;
constexpr uint32_t kEndRecord64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint32_t kIn64 = 0xffffffff;       // the value is in the zip64 structure
constexpr uint16_t kCountIn64 = 0xffff;      // the same for the number of members
constexpr uint16_t kExtra64 = 1;             // the id of zip64's extra field
constexpr uint64_t kMaxMembers = 1'000'000;  // models have some hundred
constexpr uint64_t kZipAlignment = 64;

// Slicing by eight: the tables of a byte followed by 0 … 7 zero bytes.
constexpr std::array<std::array<uint32_t, 256>, 8> make_crc_tables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    tables[0][byte] = crc;
  }
  for (size_t zeros = 1; zeros < 8; ++zeros) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[zeros - 1][byte];
      tables[zeros][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr auto kCrcTables = make_crc_tables();

class ZipParser {
 public:
  ZipParser(std::span<const std::byte> file, const std::string& source) : file_(file), source_(source) {}

  std::vector<ZipMember> parse() {
    read_end();
    std::vector<ZipMember> members;
    members.reserve(count_);
    std::set<std::string, std::less<>> names;
    uint64_t at = directory_;
    for (uint64_t i = 0; i < count_; ++i) {
      members.push_back(read_entry(at));
      if (!names.insert(members.back().name).second) fail(at, "a second member " + in_quotes(members.back().name));
    }
    if (at != directory_ + directory_bytes_) fail(at, "the central directory has another length than its end states");
    check_apart(members);
    return members;
  }

 private:
  [[noreturn]] void fail(uint64_t offset, const std::string& what) const {
    throw Error(source_ + ": offset " + std::to_string(offset) + ": " + what);
  }

  // A number of the file; the caller has checked that it is inside.
  template <class T>
  T number(uint64_t offset) const {
    BASED_ASSERT(offset <= file_.size() && sizeof(T) <= file_.size() - offset);
    T value{};
    std::memcpy(&value, file_.data() + offset, sizeof value);
    return value;
  }
  void require_inside(uint64_t offset, uint64_t size, const char* what) const {
    if (offset > file_.size() || size > file_.size() - offset) fail(offset, std::string(what) + " leaves the file: truncated?");
  }

  // Finds the end of the central directory, which a comment of up to 65,535 bytes may follow.
  void read_end() {
    if (file_.size() < kEndBytes)
      throw Error(source_ + ": not a zip archive: " + std::to_string(file_.size()) + " bytes, and its smallest structure takes 22");
    const uint64_t last = file_.size() - kEndBytes, first = last > 0xffff ? last - 0xffff : 0;
    uint64_t at = last + 1;
    bool found = false;
    while (!found && at > first) {
      --at;
      found = number<uint32_t>(at) == kEndRecord && number<uint16_t>(at + 20) == last - at;
    }
    if (!found) throw Error(source_ + ": not a zip archive, or truncated: no end of a central directory in its last 65,557 bytes");
    if (number<uint16_t>(at + 4) != 0 && number<uint16_t>(at + 4) != kCountIn64) fail(at, "the archive is in several parts");
    count_ = number<uint16_t>(at + 10);
    directory_bytes_ = number<uint32_t>(at + 12);
    directory_ = number<uint32_t>(at + 16);
    const bool locator = at >= kLocatorBytes && number<uint32_t>(at - kLocatorBytes) == kEnd64Locator;
    uint64_t end = at;
    if (locator) end = read_end64(at - kLocatorBytes);
    if (!locator && (count_ == kCountIn64 || directory_bytes_ == kIn64 || directory_ == kIn64))
      fail(at, "sizes are said to be in a zip64 structure, which is missing");
    if (count_ > kMaxMembers) fail(at, std::to_string(count_) + " members, more than the " + std::to_string(kMaxMembers) + " allowed");
    if (directory_ > end || directory_bytes_ != end - directory_) fail(at, "the central directory does not end where its end begins");
    if (count_ > directory_bytes_ / kCentralBytes) fail(at, "more members are stated than the central directory can hold");
    limit_ = directory_;
  }

  // Returns the offset of the zip64 end, which precedes its locator.
  uint64_t read_end64(uint64_t locator) {
    const auto at = number<uint64_t>(locator + 8);
    if (at > locator || locator - at < kEnd64Bytes || number<uint32_t>(at) != kEndRecord64) fail(locator, "points to no zip64 structure");
    if (number<uint64_t>(at + 4) != locator - at - 12) fail(at, "the zip64 structure has another size than it states");
    if (number<uint32_t>(at + 16) != 0 || number<uint32_t>(at + 20) != 0) fail(at, "the archive is in several parts");
    count_ = number<uint64_t>(at + 32);
    directory_bytes_ = number<uint64_t>(at + 40);
    directory_ = number<uint64_t>(at + 48);
    return at;
  }

  // One entry of the central directory; advances `at`.
  ZipMember read_entry(uint64_t& at) const {
    const uint64_t begin = at, end = directory_ + directory_bytes_;
    if (at > end || end - at < kCentralBytes || number<uint32_t>(at) != kCentralHeader) fail(at, "no entry of a central directory");
    const auto flags = number<uint16_t>(at + 8), method = number<uint16_t>(at + 10);
    uint64_t packed = number<uint32_t>(at + 20), size = number<uint32_t>(at + 24), header = number<uint32_t>(at + 42);
    const uint64_t name_bytes = number<uint16_t>(at + 28), extra_bytes = number<uint16_t>(at + 30), comment = number<uint16_t>(at + 32);
    if (name_bytes + extra_bytes + comment > end - at - kCentralBytes) fail(at, "an entry leaves the central directory");
    ZipMember member;
    member.name.assign(reinterpret_cast<const char*>(file_.data() + at + kCentralBytes), name_bytes);
    member.crc = number<uint32_t>(at + 16);
    read_extra64(at + kCentralBytes + name_bytes, extra_bytes, {&size, &packed, &header});
    const std::string subject = "member " + in_quotes(member.name) + ": ";
    check_name(begin, member.name);
    if (flags & 0x2041) fail(begin, subject + "is encrypted");
    if (method != 0 || packed != size)
      fail(begin, subject + "is compressed (method " + std::to_string(method) + "); only stored members are read");
    if (number<uint16_t>(at + 34) != 0 && number<uint16_t>(at + 34) != kCountIn64) fail(begin, subject + "is in another part");
    if (header > limit_ || limit_ - header < kLocalBytes || number<uint32_t>(header) != kLocalHeader)
      fail(begin, subject + "its header at " + std::to_string(header) + " is none");
    const uint64_t local_name = number<uint16_t>(header + 26), local_extra = number<uint16_t>(header + 28);
    member.offset = header + kLocalBytes + local_name + local_extra;
    if (member.offset > limit_ || size > limit_ - member.offset)
      fail(begin, subject + std::to_string(size) + " bytes at " + std::to_string(member.offset) + " leave the archive: truncated?");
    if (local_name != name_bytes || std::memcmp(file_.data() + header + kLocalBytes, member.name.data(), name_bytes) != 0)
      fail(header, subject + "has another name in its own header");
    member.bytes = file_.subspan(member.offset, size);
    at += kCentralBytes + name_bytes + extra_bytes + comment;
    return member;
  }

  // Reads those of the three sizes that are stated as 0xffffffff from zip64's extra field, in this order.
  void read_extra64(uint64_t at, uint64_t bytes, std::array<uint64_t*, 3> values) const {
    const uint64_t end = at + bytes;
    const bool needed = std::any_of(values.begin(), values.end(), [](const uint64_t* value) { return *value == kIn64; });
    while (needed && end - at >= 4) {
      const auto id = number<uint16_t>(at);
      const uint64_t size = number<uint16_t>(at + 2);
      at += 4;
      if (size > end - at) fail(at, "an extra field leaves its entry");
      if (id != kExtra64) {
        at += size;
        continue;
      }
      uint64_t field = at;
      for (uint64_t* value : values) {
        if (*value != kIn64) continue;
        if (at + size - field < 8) fail(at, "zip64's extra field is too short");
        *value = number<uint64_t>(field);
        field += 8;
      }
      return;
    }
    if (needed) fail(at, "a size is said to be in zip64's extra field, which is missing");
  }

  void check_name(uint64_t at, const std::string& name) const {
    const std::string padded_name = "/" + name + "/";
    if (name.empty() || name.front() == '/' || padded_name.find("/../") != std::string::npos || name.find('\\') != std::string::npos ||
        has_control_characters(name))
      fail(at, "member " + in_quotes(name) + ": the name is empty, absolute, or no plain path");
  }

  void check_apart(const std::vector<ZipMember>& members) const {
    std::vector<const ZipMember*> sorted;
    sorted.reserve(members.size());
    for (const ZipMember& member : members)
      if (!member.bytes.empty()) sorted.push_back(&member);
    std::sort(sorted.begin(), sorted.end(), [](const ZipMember* a, const ZipMember* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < sorted.size(); ++i) {
      const ZipMember &before = *sorted[i - 1], &after = *sorted[i];
      if (after.offset - before.offset < before.bytes.size())
        fail(after.offset, "members " + in_quotes(before.name) + " and " + in_quotes(after.name) + " overlap");
    }
  }

  std::span<const std::byte> file_;
  const std::string& source_;
  uint64_t count_ = 0, directory_ = 0, directory_bytes_ = 0, limit_ = 0;  // limit_: members end before it
};

template <class T>
void append_number(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

uint32_t narrow_or_64(uint64_t value) { return value >= kIn64 ? kIn64 : static_cast<uint32_t>(value); }

// The fields that local and central headers share: version … CRC.
void append_common(std::string& out, bool large, uint32_t crc) {
  append_number<uint16_t>(out, large ? 45 : 20);
  append_number<uint16_t>(out, 0x0800);      // names are UTF-8
  append_number<uint16_t>(out, 0);           // stored
  append_number<uint32_t>(out, 0x00210000);  // 1980-01-01, the format's earliest
  append_number<uint32_t>(out, crc);
}

}  // namespace

std::vector<ZipMember> parse_zip(std::span<const std::byte> file, const std::string& source) { return ZipParser(file, source).parse(); }

void check_crc(const ZipMember& member, const std::string& source) {
  if (crc32(member.bytes) != member.crc)
    throw Error(source + ": offset " + std::to_string(member.offset) + ": member " + in_quotes(member.name) +
                " is damaged: its bytes have another CRC-32 than the archive states");
}

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  size_t at = 0;
  for (; bytes.size() - at >= 8; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kCrcTables[7 - i][word >> (8 * i) & 0xff];
  }
  for (; at < bytes.size(); ++at) crc = crc >> 8 ^ kCrcTables[0][(crc ^ static_cast<uint32_t>(bytes[at])) & 0xff];
  return ~crc;
}

void ZipWriter::write(const std::string& bytes) {
  file_.write(std::as_bytes(std::span(bytes)));
  written_ += bytes.size();
}

void ZipWriter::add(const std::string& name, std::span<const std::byte> bytes) {
  BASED_ASSERT(!name.empty() && name.size() <= 0xffff);
  Entry entry{name, written_, bytes.size(), crc32(bytes)};
  const bool large = entry.size >= kIn64;
  std::string extra;
  if (large) {
    append_number<uint16_t>(extra, kExtra64);
    append_number<uint16_t>(extra, 16);
    append_number<uint64_t>(extra, entry.size);
    append_number<uint64_t>(extra, entry.size);
  }
  const uint64_t data = written_ + kLocalBytes + name.size() + extra.size() + 4;
  const uint64_t gap = (kZipAlignment - data % kZipAlignment) % kZipAlignment;
  extra += "FB";
  append_number<uint16_t>(extra, static_cast<uint16_t>(gap));
  extra.append(gap, 'Z');
  std::string header;
  append_number(header, kLocalHeader);
  append_common(header, large, entry.crc);
  append_number(header, narrow_or_64(entry.size));
  append_number(header, narrow_or_64(entry.size));
  append_number(header, static_cast<uint16_t>(name.size()));
  append_number(header, static_cast<uint16_t>(extra.size()));
  write(header + name + extra);
  file_.write(bytes);
  written_ += bytes.size();
  entries_.push_back(std::move(entry));
}

void ZipWriter::commit() {
  const uint64_t directory = written_;
  for (const Entry& entry : entries_) {
    std::string extra;
    const bool large_size = entry.size >= kIn64, large_header = entry.header >= kIn64;
    if (large_size || large_header) {
      append_number(extra, kExtra64);
      append_number(extra, static_cast<uint16_t>((large_size ? 16 : 0) + (large_header ? 8 : 0)));
      if (large_size) append_number(extra, entry.size);
      if (large_size) append_number(extra, entry.size);
      if (large_header) append_number(extra, entry.header);
    }
    std::string header;
    append_number(header, kCentralHeader);
    append_number<uint16_t>(header, 45);  // written by version 4.5 of the format
    append_common(header, large_size || large_header, entry.crc);
    append_number(header, narrow_or_64(entry.size));
    append_number(header, narrow_or_64(entry.size));
    append_number(header, static_cast<uint16_t>(entry.name.size()));
    append_number(header, static_cast<uint16_t>(extra.size()));
    header.append(10, '\0');  // no comment, part 0, no attributes
    append_number(header, narrow_or_64(entry.header));
    write(header + entry.name + extra);
  }
  const uint64_t bytes = written_ - directory, count = entries_.size();
  std::string end;
  if (count >= kCountIn64 || bytes >= kIn64 || directory >= kIn64) {
    append_number(end, kEndRecord64);
    append_number<uint64_t>(end, kEnd64Bytes - 12);
    append_number<uint16_t>(end, 45);
    append_number<uint16_t>(end, 45);
    append_number<uint64_t>(end, 0);  // part 0, whose directory starts in part 0
    append_number(end, count);
    append_number(end, count);
    append_number(end, bytes);
    append_number(end, directory);
    append_number(end, kEnd64Locator);
    append_number<uint32_t>(end, 0);
    append_number<uint64_t>(end, written_);
    append_number<uint32_t>(end, 1);
  }
  append_number(end, kEndRecord);
  append_number<uint32_t>(end, 0);
  append_number(end, static_cast<uint16_t>(std::min<uint64_t>(count, kCountIn64)));
  append_number(end, static_cast<uint16_t>(std::min<uint64_t>(count, kCountIn64)));
  append_number(end, narrow_or_64(bytes));
  append_number(end, narrow_or_64(directory));
  append_number<uint16_t>(end, 0);
  write(end);
  file_.commit();
}

}  // namespace based
