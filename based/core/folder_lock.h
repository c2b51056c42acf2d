// One process at a time writes to a folder, or to a file.
#pragma once
#include <string>

#include "based/core/error.h"

namespace based {

// What a lock is: a file that names the holder's process and is there as long as the lock. Released when the process ends, however it does.
class LockFile {
 public:
  explicit LockFile(std::string path) : path_(std::move(path)) {}
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;
  ~LockFile();

  enum class Taken { yes, gone, held };
  // gone: the file or its folder went away meanwhile; to be tried again. held: by another, in this process or not. Throws Error where it
  // cannot be made.
  Taken try_take();
  // False: gone. Throws Error where another holds it: it is for `name`, a `kind`.
  bool take(const std::string& name, const std::string& kind);
  void remove();  // the lock itself is held until the end

 private:
  std::string path_, holder_;
  int descriptor_ = -1;
};

// Taken before the folder is looked into. Makes the folder where it is absent; its lock is the file .lock in it. Throws Error where another
// holds it. A folder that the lock made and that is left empty goes with it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  std::string folder_;
  LockFile lock_;
  bool made_ = false;  // the folder
};

// Taken before a file is looked at that is written piece by piece; the lock is `file`.lock. Throws Error where another holds it.
class FileLock {
 public:
  explicit FileLock(const std::string& file);

 private:
  LockFile lock_;
};

}  // namespace based
