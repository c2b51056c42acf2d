#include "based/core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <utility>

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

int open_for_reading(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "cannot open", errno);
  return descriptor;
}

struct stat status_of(int descriptor, const std::string& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(path, "cannot read its size", errno);
  if (S_ISDIR(status.st_mode)) throw Error(path + ": is a folder, not a file");
  return status;
}

// Past RLIMIT_FSIZE a write would kill the process by SIGXFSZ; blocked and taken away again, it is just the error EFBIG.
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

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

std::string read_file(const std::string& path) {
  const Descriptor file(open_for_reading(path));
  std::string content(static_cast<size_t>(status_of(file.get(), path).st_size), '\0');
  size_t filled = 0;
  while (true) {
    if (filled == content.size()) {
      // At the expected end one more read tells whether the file (or pipe) has more.
      char more[4096];
      const ssize_t got = ::read(file.get(), more, sizeof more);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail(path, "cannot read", errno);
      if (got == 0) return content;
      content.append(more, static_cast<size_t>(got));
      filled = content.size();
      continue;
    }
    const ssize_t got = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot read", errno);
    if (got == 0) content.resize(filled);
    filled += static_cast<size_t>(got);
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(temporary_sibling(path)) {
  // A rename would replace a device or a pipe by a file.
  struct stat status {};
  if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    temporary_.clear();
    throw Error(path_ + ": cannot be written: it is no regular file; name another");
  }
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(path_, "cannot write", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  const NoFileSizeSignal guard;
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(path_, "cannot write", errno);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

void AtomicFile::commit() {
  BASED_ASSERT(descriptor_ >= 0);
  if (::fsync(descriptor_) != 0) fail(path_, "cannot write to disk", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail(path_, "cannot write", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot put the new file in place", errno);
  temporary_.clear();
  sync_folder(folder_of(path_));
}

void write_file_atomic(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

AppendFile::AppendFile(const std::string& path, uint64_t keep) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(path_, "cannot write", errno);
  try {
    size_ = std::min(keep, static_cast<uint64_t>(status_of(descriptor_, path_).st_size));
    if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) fail(path_, "cannot be cut to its records", errno);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

AppendFile::~AppendFile() { ::close(descriptor_); }

bool AppendFile::write_waiting() {
  const NoFileSizeSignal guard;
  size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t written = ::pwrite(descriptor_, waiting_.data() + done, waiting_.size() - done, static_cast<off_t>(size_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      error_ = errno;
      // The part that found room goes again: a reader meets whole records. Where even that fails, the next try writes over it.
      if (::ftruncate(descriptor_, static_cast<off_t>(size_)) != 0) error_ = errno;
      return false;
    }
    done += static_cast<size_t>(written);
  }
  size_ += done;
  waiting_.clear();
  return true;
}

bool AppendFile::append(std::string_view record) {
  waiting_ += record;
  return write_waiting();
}

void AppendFile::sync() {
  if (!write_waiting()) fail(path_, "cannot write", error_);
  if (::fsync(descriptor_) != 0) fail(path_, "cannot write to disk", errno);
}

void sync_folder(const std::string& folder) {
  const Descriptor handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0) fail(folder, "cannot open the folder", errno);
  // Some file systems cannot sync a folder and say EINVAL: then there is nothing more to be done.
  if (::fsync(handle.get()) != 0 && errno != EINVAL) fail(folder, "cannot write to disk", errno);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(open_for_reading(path));
  const struct stat status = status_of(file.get(), path);
  if (!S_ISREG(status.st_mode)) throw Error(path + ": not a regular file");
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
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

}  // namespace based
