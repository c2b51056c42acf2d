// Folders of several files that appear complete or not at all: after a full disk the same command can be repeated.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace based {

// A folder into which files are about to be written: made where it is absent, with those above it. Until keep() is called, the destructor
// removes the folders that this object made, as far as they are empty. Throws Error where one cannot be made.
class MadeFolder {
 public:
  explicit MadeFolder(const std::string& path) : MadeFolder(path, path) {}
  MadeFolder(const std::string& path, const std::string& asked_for);  // `asked_for` is what messages name: a path below
  MadeFolder(const MadeFolder&) = delete;
  MadeFolder& operator=(const MadeFolder&) = delete;
  ~MadeFolder();

  void keep() { made_.clear(); }

 private:
  std::vector<std::string> made_;  // the outermost first
};

// A new folder with all that it is to hold: at `path` is nothing, or the whole of it.
class NewFolder {
 public:
  // Throws UsageError where something is at `path` already, naming `option`, and Error where no folder can be made there.
  NewFolder(const std::string& path, const std::string& option);
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();  // removes the staged files unless fill() succeeded

  // `write` fills a sibling of the folder, which is then synced and renamed to `path`. At most once. Errors that it throws
  // name the files by their final paths.
  void fill(const std::function<void(const std::string& folder)>& write);

 private:
  std::string path_, above_, staging_;
  MadeFolder parent_;
};

}  // namespace based
