// Files that survive a crash, and messages that name them. All functions throw Error as "<path>: what is wrong".
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

// Whether there is something at `path`. Error where that cannot be known, since the way there is closed or leads through a file.
bool path_exists(const std::string& path);

// What is read of a file at most, unless its reader knows better.
inline constexpr uint64_t kMaxReadBytes = uint64_t{1} << 31;

// A file or a pipe to its end. Refuses folders, and whatever has more than `limit` bytes, as a device without an end has.
std::string read_file(const std::string& path, uint64_t limit = kMaxReadBytes);
// The same for a file of a known folder, which nobody feeds: it must be a regular one, since opening a pipe waits for its other end.
std::string read_regular_file(const std::string& path, uint64_t limit = kMaxReadBytes);

// Writes a temporary sibling, syncs it, renames it over `path` and syncs the folder: after a crash at any moment `path` is the old file or
// the new one, whole. Where the disk is full, the old file stays and the temporary is removed. A link stays, and what it points to is
// written; an existing file's mode stays, too.
void write_file_atomic(const std::string& path, std::string_view content);

// The same for content that is made piece by piece. Without commit the destructor removes the temporary and `path` stays as it was.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void commit();  // at most once; afterwards nothing may be written

 private:
  std::string path_, target_, temporary_;  // as named; where its links end
  int descriptor_ = -1;
};

// Throws now what AtomicFile would throw after long work: the folder is absent, say, or `path` is a folder.
void check_writable(const std::string& path);

// A log that grows by whole records. A record for which there is no room is kept in memory and written before the next one, so that none
// is torn or lost while the disk is full.
class AppendFile {
 public:
  // Keeps the first `keep` bytes of the file (all that it has, where it has fewer) and goes on behind them; makes it where it is absent.
  AppendFile(const std::string& path, uint64_t keep);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  bool append(std::string_view record);    // false: it waits in memory
  void sync();                             // everything is on disk afterwards, or Error
  uint64_t size() const { return size_; }  // bytes of whole records in the file

 private:
  bool write_waiting();

  std::string path_, waiting_;
  int descriptor_ = -1, error_ = 0;
  uint64_t size_ = 0;
};

// Makes `folder`'s entries durable (a rename or a new file in it).
void sync_folder(const std::string& folder);

// A regular file mapped for reading; it must not be cut short meanwhile (replacing it, as above, is safe). The bytes stay valid and at
// their address as long as the object, wherever it moves.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace based
