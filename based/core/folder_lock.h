// Locks by which only one process at a time writes to a folder or file.
#pragma once
#include <string>

#include "based/core/error.h"

namespace based {

// A lock file: it contains the holder's process id and is removed with the lock. The system releases the lock when the process ends, for
// whatever reason.
class LockFile {
 public:
  explicit LockFile(std::string path) : path_(std::move(path)) {}
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;
  ~LockFile();

  enum class Taken { yes, gone, held };
  // gone: the file or its folder was removed in the meantime; call again. held: another holder, in this process or another, has the lock.
  // Throws Error if the file cannot be created.
  Taken try_take();
  // Returns false for `gone`. Throws Error if the lock is held; the message calls the locked object `name`, a `kind` ("folder", "file").
  bool take(const std::string& name, const std::string& kind);
  void remove();  // removes the file; the lock itself is held until destruction

 private:
  std::string path_, holder_;
  int descriptor_ = -1;
};

// Locks a folder; to be constructed before the folder is read. The lock is the file .lock in the folder, which is created if absent. Throws
// Error if another process holds it. If the constructor created the folder and it is still empty, the destructor removes it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  std::string folder_;
  LockFile lock_;
  bool made_ = false;  // whether this object created the folder
};

// Locks a file that is written in pieces; to be constructed before the file is read. The lock is `file`.lock. Throws Error if another
// process holds it.
class FileLock {
 public:
  explicit FileLock(const std::string& file);

 private:
  LockFile lock_;
};

}  // namespace based
