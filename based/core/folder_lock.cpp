#include "based/core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "based/core/folders.h"
#include "based/core/text.h"

namespace based {
namespace {

// The process id in a lock file, or "" if its holder has not written it yet. Only digits are read, since the file may have any content.
std::string holder(int descriptor) {
  std::array<char, 32> text{};
  const ssize_t length = ::pread(descriptor, text.data(), text.size(), 0);
  int64_t process = 0;
  if (length <= 0 || std::from_chars(text.data(), text.data() + length, process).ec != std::errc()) return "";
  return " (process " + std::to_string(process) + ")";
}

}  // namespace

LockFile::Taken LockFile::try_take() {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0 && errno == ENOENT && !is_folder(folder_of(path_))) return Taken::gone;
  if (descriptor_ < 0) throw Error(path_ + ": cannot write: " + system_message(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    holder_ = holder(descriptor_);
    ::close(std::exchange(descriptor_, -1));
    if (error != EWOULDBLOCK) throw Error(path_ + ": cannot be locked: " + system_message(error));
    return Taken::held;
  }
  struct stat locked {};
  if (::fstat(descriptor_, &locked) != 0 || locked.st_nlink == 0) {  // its last holder removed it between our open() and our lock
    ::close(std::exchange(descriptor_, -1));
    return Taken::gone;
  }
  const std::string process = std::to_string(::getpid()) + "\n";
  // On a full disk the lock cannot name its holder, but it is still a lock.
  if (::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, process.data(), process.size(), 0) < 0) errno = 0;
  return Taken::yes;
}

bool LockFile::take(const std::string& name, const std::string& kind) {
  const Taken taken = try_take();
  if (taken == Taken::held)
    throw Error(name + ": another run is writing to this " + kind + holder_ + "; wait for it, or name another " + kind);
  return taken == Taken::yes;
}

void LockFile::remove() {
  if (descriptor_ >= 0 && !path_.empty()) ::unlink(std::exchange(path_, {}).c_str());
}

LockFile::~LockFile() {
  remove();
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderLock::FolderLock(const std::string& folder) : folder_(folder), lock_(folder + "/.lock") {
  do {  // its last holder may remove the folder in the meantime
    made_ = make_folder(folder_) || made_;
  } while (!lock_.take(folder_, "folder"));
}

FolderLock::~FolderLock() {
  lock_.remove();
  if (made_) ::rmdir(folder_.c_str());  // fails unless it is empty
}

FileLock::FileLock(const std::string& file) : lock_(file + ".lock") {
  const std::string folder = folder_of(file);
  do {
    if (!is_folder(folder)) throw Error(file + ": its folder " + folder + " is not there");
  } while (!lock_.take(file, "file"));
}

}  // namespace based
