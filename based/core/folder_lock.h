// One process at a time writes to a folder.
#pragma once
#include <string>

#include "based/core/error.h"

namespace based {

// Taken before the folder is looked into. Makes the folder where it is absent; its file .lock, which names the holder's process, is there
// as long as the lock. Throws Error where another holds it. Released when the process ends, however it does; a folder that the lock made
// and that is left empty goes with it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  bool open_and_lock();  // false: the file went away meanwhile, to be tried again

  std::string folder_, path_;
  int descriptor_ = -1;
  bool made_ = false;  // the folder
};

}  // namespace based
