// Durable files. All functions throw Error as "<path>: <reason>".
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

// Whether `path` exists. Throws Error if that cannot be determined: a parent folder is not accessible, or is a file.
bool path_exists(const std::string& path);

// The path of a folder's file.
std::string path_in(const std::string& folder, const std::string& name);

// The default size limit of files that are read into memory.
inline constexpr uint64_t kMaxReadBytes = uint64_t{1} << 31;

// Reads a file or a pipe to its end. Throws Error for folders, and for more than `limit` bytes, so that an endless device is no danger.
std::string read_file(const std::string& path, uint64_t limit = kMaxReadBytes);
// Reads a regular file and throws Error for anything else. For files of a known folder: opening a pipe there would block until some process
// opens its other end.
std::string read_regular_file(const std::string& path, uint64_t limit = kMaxReadBytes);

// Replaces a file atomically and durably: writes a temporary sibling, syncs it, renames it over `path` and syncs the folder. After a crash
// at any moment, `path` is the complete old or new file. If the disk is full, the old file stays and the temporary is removed. If `path` is
// a link, its target is replaced. An existing file keeps its mode.
void write_file_atomic(const std::string& path, std::string_view content);

// As write_file_atomic, for content that is written in pieces. Without commit(), the destructor removes the temporary and `path` stays as
// it was.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void commit();  // at most once; write() must not be called afterwards

 private:
  std::string path_, target_, temporary_;  // `target_` is `path_` with links resolved
  int descriptor_ = -1;
};

// Throws the Error that AtomicFile would throw for `path`, such as a missing folder. Called before long work.
void check_writable(const std::string& path);

// A log to which whole records are appended. While the disk is full, records are kept in memory and written later, so that none is torn or
// lost.
class AppendFile {
 public:
  // Opens or creates the file, cuts it to its first `keep` bytes if it is longer, and appends to these.
  AppendFile(const std::string& path, uint64_t keep);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  bool append(std::string_view record);    // false: the record is still in memory
  void flush();                            // writes all records; throws Error if one cannot be written
  void sync_written() const;               // makes the written records durable; another thread may append meanwhile
  void sync();                             // flush() and sync_written()
  uint64_t size() const { return size_; }  // bytes of whole records in the file

 private:
  bool write_pending();

  std::string path_, pending_;
  int descriptor_ = -1, error_ = 0;
  uint64_t size_ = 0;
};

// Makes changes of `folder`'s entries durable, such as a rename or a new file.
void sync_folder(const std::string& folder);

// A regular file mapped for reading. The file must not be truncated in the meantime; replacing it atomically, as above, is safe. The bytes
// stay valid at the same address as long as the object exists, also when it is moved.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(const std::string& path, int descriptor);  // an open file, which the caller may close afterwards
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

// Throws Error if the bytes of the file `path` are a pointer of Git LFS, which a clone without it leaves in place of a large file.
void refuse_lfs_pointer(std::span<const std::byte> bytes, const std::string& path);

// A file without a name, for data that does not fit into memory. The system frees its space with the object, also after a kill.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& folder);  // on the file system of `folder`; messages name the folder
  ScratchFile(ScratchFile&& other) noexcept;
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  void append(std::span<const std::byte> bytes);
  MappedFile map() const;  // all bytes appended so far

 private:
  std::string folder_;
  int descriptor_ = -1;
};

}  // namespace based
