// Folders of several files that appear complete or not at all. After a failure, such as a full disk, the same command can be repeated.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace based {

// Creates a folder and its missing parents, for files that are about to be written. Unless keep() is called, the destructor removes those
// folders that this object created and that are still empty. Throws Error if one cannot be created.
class MadeFolder {
 public:
  explicit MadeFolder(const std::string& path) : MadeFolder(path, path) {}
  MadeFolder(const std::string& path, const std::string& asked_for);  // messages name `asked_for`, the user's path below the folder
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;
  ~MadeFolder();

  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;  // the outermost first
};

// Creates a folder together with all of its files: at any time, `path` does not exist or is complete.
class NewFolder {
 public:
  // Throws UsageError that names `option` if `path` exists already, and Error if no folder can be created there.
  NewFolder(const std::string& path, const std::string& option);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();  // removes the staged files unless fill() succeeded

  // Calls `write` to fill a staging folder next to `path`, syncs it and renames it to `path`. At most once. Errors that `write` throws name
  // the files by their final paths.
  void fill(const std::function<void(const std::string& folder)>& write);

 private:
  std::string path_, above_, staging_;
  MadeFolder parent_;
};

}  // namespace based
