#include "based/core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "based/core/folders.h"
#include "based/core/temporaries.h"
#include "based/core/text.h"

namespace based {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what, int error_number) {
  throw Error(path + ": " + what + ": " + system_message(error_number));
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

int opened(const std::string& path, int flags, const char* failure) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(path, failure, errno);
  return descriptor;
}

struct stat status_of(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(path, "cannot read its size", errno);
  if (S_ISDIR(status.st_mode)) throw Error(path + ": is a folder, not a file");
  return status;
}

struct stat status_of_regular(int descriptor, const std::string& path) {
  const struct stat status = status_of(descriptor, path);
  if (!S_ISREG(status.st_mode)) throw Error(path + ": not a regular file");
  return status;
}

// Resolves links: the path that `path` finally refers to. The file need not exist.
std::string end_of_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // the kernel's limit
  std::filesystem::path at = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    std::error_code no_link;
    const std::filesystem::path next = std::filesystem::read_symlink(at, no_link);
    if (no_link) return at.string();
    at = at.parent_path() / next;
  }
  fail(path, "cannot write", ELOOP);
}

// A write beyond RLIMIT_FSIZE raises SIGXFSZ, which kills the process. While the signal is blocked, the write only fails with EFBIG; the
// pending signal is then removed.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&blocked_);
    sigaddset(&blocked_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) == 0) {
      const timespec no_wait{};
      sigtimedwait(&blocked_, nullptr, &no_wait);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t blocked_{}, before_{};
};

void write_bytes(int descriptor, std::span<const std::byte> bytes, const std::string& path, const char* failure) {
  const NoFileSizeSignal guard;
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path, failure, errno);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

std::string read_to_the_end(const Descriptor& file, uint64_t size, const std::string& path, uint64_t limit) {
  const auto check = [&](uint64_t bytes) {
    if (bytes > limit) throw Error(path + ": longer than the " + std::to_string(limit) + " bytes that are read of it at most");
  };
  check(size);
  std::string content(static_cast<size_t>(size), '\0');
  size_t filled = 0;
  while (true) {
    if (filled == content.size()) {
      // At the expected end, one more read tells whether the file or pipe has more.
      char more[4096];
      const ssize_t got = ::read(file.get(), more, sizeof more);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(path, "cannot read", errno);
      if (got == 0) return content;
      content.append(more, static_cast<size_t>(got));
      filled = content.size();
      check(filled);
      continue;
    }
    const ssize_t got = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot read", errno);
    if (got == 0) content.resize(filled);
    filled += static_cast<size_t>(got);
  }
}

}  // namespace

std::string path_in(const std::string& folder, const std::string& name) { return (std::filesystem::path(folder) / name).string(); }

bool path_exists(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return true;
  if (errno != ENOENT) fail(path, "cannot be looked for", errno);
  return false;
}

std::string read_file(const std::string& path, uint64_t limit) {
  const Descriptor file(opened(path, O_RDONLY, "cannot open"));
  return read_to_the_end(file, static_cast<uint64_t>(status_of(file.get(), path).st_size), path, limit);
}

std::string read_regular_file(const std::string& path, uint64_t limit) {
  const Descriptor file(opened(path, O_RDONLY | O_NONBLOCK, "cannot open"));
  return read_to_the_end(file, static_cast<uint64_t>(status_of_regular(file.get(), path).st_size), path, limit);
}

void refuse_lfs_pointer(std::span<const std::byte> bytes, const std::string& path) {
  constexpr std::string_view beginning = "version https://git-lfs.github.com/";
  if (bytes.size() >= beginning.size() && std::memcmp(bytes.data(), beginning.data(), beginning.size()) == 0)
    throw Error(path + ": is a pointer of Git LFS, not the file itself; download the file, for example by `git lfs pull`");
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(end_of_links(path)) {
  // A rename would replace a device or a pipe by a file.
  struct stat before {};
  const bool exists = ::stat(target_.c_str(), &before) == 0;
  // The temporary name is shorter than the target's, so only the rename of commit() would fail.
  if (!exists && errno == ENAMETOOLONG) fail(path_, "cannot write", errno);
  if (exists && !S_ISREG(before.st_mode)) throw Error(path_ + ": cannot be written: it is no regular file; name another");
  const std::string temporary = temporary_sibling(target_);
  descriptor_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(path_, "cannot write", errno);
  if (exists && ::fchmod(descriptor_, before.st_mode & 07777) != 0) {
    const int error = errno;
    ::close(descriptor_);
    ::unlink(temporary.c_str());
    fail(path_, "the new file cannot have the mode of the one before", error);
  }
  temporary_ = temporary;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) { write_bytes(descriptor_, bytes, path_, "cannot write"); }

void AtomicFile::commit() {
  BASED_ASSERT(descriptor_ >= 0);
  if (::fsync(descriptor_) != 0) fail(path_, "cannot write to disk", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail(path_, "cannot write", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(path_, "cannot put the new file in place", errno);
  temporary_.clear();
  sync_folder(folder_of(target_));
}

void write_file_atomic(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

void check_writable(const std::string& path) { const AtomicFile made_and_removed(path); }

AppendFile::AppendFile(const std::string& path, uint64_t keep) : path_(path) {
  descriptor_ = opened(path, O_WRONLY | O_CREAT | O_NONBLOCK, "cannot write");
  try {
    size_ = std::min(keep, static_cast<uint64_t>(status_of_regular(descriptor_, path_).st_size));
    if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) fail(path_, "cannot be cut to its records", errno);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

AppendFile::~AppendFile() { ::close(descriptor_); }

bool AppendFile::write_pending() {
  const NoFileSizeSignal guard;
  size_t done = 0;
  while (done < pending_.size()) {
    const ssize_t written = ::pwrite(descriptor_, pending_.data() + done, pending_.size() - done, static_cast<off_t>(size_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      error_ = errno;
      // Cuts off the partial record, so that readers find whole records only. If even that fails, the next attempt overwrites it.
      if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) error_ = errno;
      return false;
    }
    done += static_cast<size_t>(written);
  }
  size_ += done;
  pending_.clear();
  return true;
}

bool AppendFile::append(std::string_view record) {
  pending_ += record;
  return write_pending();
}

void AppendFile::flush() {
  if (!write_pending()) fail(path_, "cannot write", error_);
}

void AppendFile::sync_written() const {
  if (::fsync(descriptor_) != 0) fail(path_, "cannot write to disk", errno);
}

void AppendFile::sync() {
  flush();
  sync_written();
}

void sync_folder(const std::string& folder) {
  const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0) fail(folder, "cannot open the folder", errno);
  // Some file systems cannot sync a folder and return EINVAL, which is ignored.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) fail(folder, "cannot write to disk", errno);
}

MappedFile::MappedFile(const std::string& path) : MappedFile(path, Descriptor(opened(path, O_RDONLY | O_NONBLOCK, "cannot open")).get()) {}

MappedFile::MappedFile(const std::string& path, int descriptor) : path_(path) {
  const auto size = static_cast<size_t>(status_of_regular(descriptor, path).st_size);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) fail(path, "cannot map into memory", errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

ScratchFile::ScratchFile(const std::string& folder) : folder_(folder) {
  const std::string path = temporary_sibling(path_in(folder, "scratch"));
  descriptor_ = opened(path, O_RDWR | O_CREAT | O_EXCL, "cannot create a temporary file");
  ::unlink(path.c_str());
}

ScratchFile::ScratchFile(ScratchFile&& other) noexcept
    : folder_(std::move(other.folder_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

ScratchFile::~ScratchFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void ScratchFile::append(std::span<const std::byte> bytes) { write_bytes(descriptor_, bytes, folder_, "cannot write a temporary file"); }

MappedFile ScratchFile::map() const { return {folder_, descriptor_}; }

}  // namespace based
