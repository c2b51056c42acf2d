// The finished runs of an experiment. The process that does a run writes its file results/<key>.json. pack() moves finished files into
// results.jsonl beside results/, one line a run. Where a run has both, its own file wins: it is the newer one, written by --fresh or
// --retry, or the copy that is left when pack() is killed before it removes the file. Any number of processes and machines may add files to
// one folder at the same time.
#pragma once
#include <optional>
#include <string>
#include <unordered_set>

#include "based/core/hash.h"
#include "based/experiments/experiment.h"
#include "based/experiments/packed_results.h"

namespace based {

struct PackOutcome {
  int64_t packed = 0, left = 0, lines = 0;  // files that became lines; files that changed meanwhile and stay; lines of the file now
};

class ResultsFolder {
 public:
  explicit ResultsFolder(std::string folder) : folder_(std::move(folder)), packed_(folder_ + ".jsonl") {}

  const std::string& folder() const { return folder_; }
  const std::string& packed_file() const { return packed_.path(); }
  std::string place() const;                        // the folder, the packed file or both, as they exist, for messages
  std::string file(const std::string& key) const;   // the run's own file
  std::string claim(const std::string& key) const;  // the lock that the process doing the run holds
  void make();                                      // makes the folder; throws Error if it cannot be written to

  // The keys of all runs with a file or a line. Call it once before looking up many runs. Throws Error.
  std::unordered_set<std::string> keys() const;
  // Whether the run has a line in results.jsonl now. Throws Error for a damaged line, as PackedResults::refresh().
  bool has_line(const std::string& key) const;
  // The stored result of runs()[index] on such a device; nothing if there is none. A damaged file is named in a warning and not used: it is
  // no JSON, or a field is missing, of a wrong type, not the planned run's, or a figure that no run can have. `set_aside` renames it to
  // *.damaged. A damaged line cannot be set aside, so it is an Error with file, line and field. Throws Error also if a file cannot be read
  // or renamed, or is of a later format.
  std::optional<StoredRun> read(const ExperimentFile& file, size_t index, torch::DeviceType device, bool set_aside) const;
  // Writes the run's own file, whole or not at all. Throws Error.
  void write(const StoredRun& run) const;

  // Moves every run's file into results.jsonl: writes the new lines to a temporary file, syncs and renames it, and only then removes the
  // files. A kill in between leaves a run's file beside its line. `file` plans the runs that are checked as read() checks them; results of
  // other runs (another scale, --set) are checked for their fields and key. Throws Error, and changes nothing, if a run is under way in the
  // folder, another process packs it, or a file or line is damaged or of a later format.
  PackOutcome pack(const ExperimentFile& file);

 private:
  std::unordered_set<std::string> file_keys() const;
  bool remove_packed(const std::string& key, const Hash128& packed) const;  // false: the file stays, since it is not the packed one

  std::string folder_;
  mutable PackedResults packed_;  // a cache of the file
};

}  // namespace based
