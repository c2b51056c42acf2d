// The finished runs of experiments: a folder with one file a run, named by the run's key. Any number of processes and machines may add to
// one folder, at once or one after another.
#pragma once
#include <optional>
#include <string>
#include <unordered_set>

#include "based/experiments/experiment.h"

namespace based {

class ResultsFolder {
 public:
  explicit ResultsFolder(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  std::string file(const std::string& key) const;   // of a run
  std::string claim(const std::string& key) const;  // the lock of whoever does it
  void make();                                      // the folder; throws Error where it cannot be written to

  // The keys of all runs with a file; none where there is no folder. To be asked once where many are looked for. Throws Error.
  std::unordered_set<std::string> keys() const;
  // What is kept of runs()[index], done on such a device. None where there is nothing, and where the file is damaged, which a warning says:
  // it is no JSON, or a field is missing, of a wrong type, not the planned run's, or a figure that no run comes to. `set_aside`: it is then
  // renamed to *.damaged. Throws Error where it cannot be read or renamed, or is of a later format.
  std::optional<StoredRun> read(const ExperimentFile& file, size_t index, torch::DeviceType device, bool set_aside) const;
  // Whole or not at all. Throws Error.
  void write(const StoredRun& run) const;

 private:
  std::string folder_;
};

}  // namespace based
