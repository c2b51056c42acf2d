// Zip archives whose members are stored uncompressed, as torch.save writes them: a strict reader, and a writer. With zip64, for archives
// and members above 4 GiB. Libraries such as libzip return copies of the members; here tensors are used in place, in the mapped file, and
// need only the structure.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/files.h"

namespace based {

struct ZipMember {
  std::string name;
  uint64_t offset = 0;  // position of its first byte in the archive
  uint32_t crc = 0;     // as the archive states it; check_crc compares
  std::span<const std::byte> bytes;
};

// The members, in the order of the central directory. Sizes are those of the central directory. Throws Error that names `source`, the
// member and the offset, for: compression, encryption, archives in parts, names that are absolute, contain ".." or occur twice, members
// that overlap or leave the file, and structures that contradict each other.
std::vector<ZipMember> parse_zip(std::span<const std::byte> file, const std::string& source);

// Throws Error unless the member's bytes have the stated CRC-32.
void check_crc(const ZipMember& member, const std::string& source);

// CRC-32 as in zip and gzip (polynomial 0xedb88320); `crc` is that of the bytes before.
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc = 0);

// Writes an archive from its beginning to its end. Members have no timestamps, so that equal content gives equal files.
class ZipWriter {
 public:
  explicit ZipWriter(const std::string& path) : file_(path) {}

  // Each member starts at a multiple of 64 bytes, as torch.save aligns them: an extra field "FB" of the local header fills the gap.
  void add(const std::string& name, std::span<const std::byte> bytes);
  void add(const std::string& name, std::string_view text) { add(name, std::as_bytes(std::span(text))); }
  void commit();  // writes the central directory; at most once, after all members

 private:
  struct Entry {
    std::string name;
    uint64_t header = 0, size = 0;
    uint32_t crc = 0;
  };
  void write(const std::string& bytes);

  AtomicFile file_;
  uint64_t written_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace based
