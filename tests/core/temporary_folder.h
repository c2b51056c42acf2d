// A temporary folder for a test, which the destructor removes.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "based/core/error.h"

namespace based {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "based-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw Error(pattern + ": cannot make the folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

// The message of the exception E that `run` throws; "" if it does not throw.
template <class E, class Run>
std::string message_of(Run run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

}  // namespace based
