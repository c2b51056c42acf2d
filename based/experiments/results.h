// The finished runs of experiments: a folder with one file a run, named by the run's key. Any number of processes and machines may add to
// one folder, at once or one after another.
#pragma once
#include <optional>
#include <string>

#include "based/experiments/kind.h"

namespace based {

class ResultsFolder {
 public:
  explicit ResultsFolder(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  std::string file(const std::string& key) const;   // of a run
  std::string claim(const std::string& key) const;  // the lock of whoever does it
  void make();                                      // the folder; throws Error where it cannot be written to

  // None where there is none, and where the file is damaged, which a warning says. `set_aside`: it is then renamed to *.damaged. Throws
  // Error where it cannot be read, or is of a later format.
  std::optional<StoredRun> read(const std::string& key, bool set_aside) const;
  // Whole or not at all. Throws Error.
  void write(const StoredRun& run) const;

 private:
  std::string folder_;
};

}  // namespace based
