// The results of a file of prompts, in memory and in a partial file. A run that is killed or that fills the disk leaves the partial file
// for the next run.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/generate/batch.h"

namespace based {

class BatchResults {
 public:
  // Reads the partial file of an earlier run. Throws UsageError if that run had other inputs or options, or if --resume is missing or has
  // nothing to do; Error if a line is damaged, the file cannot be written, or another process writes to it.
  BatchResults(const BatchOutput& output, const PromptsFile& prompts);

  bool has(int64_t index) const { return lines_.contains(index); }
  int64_t size() const { return static_cast<int64_t>(lines_.size()); }
  // Results of earlier runs, and the failed ones among them.
  int64_t kept() const { return kept_; }
  int64_t kept_failed() const { return kept_failed_; }

  void add(int64_t index, const Json& result);  // throws Error if the disk is full
  void finish();                                // throws Error if the disk is full
  // Called after an Error: closes the file, removes it if it holds no result, and returns a message that says how many results are kept and
  // how to continue.
  std::string leave();

 private:
  void print(int64_t index);
  std::string head() const;
  uint64_t read_partial();
  void require_same_run(const std::string& line) const;
  void keep_line(const std::string& line, const std::string& place);

  const BatchOutput& output_;
  const PromptsFile& prompts_;
  int64_t next_ = 0, kept_ = 0, kept_failed_ = 0;
  std::optional<FileLock> lock_;  // held on the output: no other run reads or extends it
  std::string partial_;
  std::unique_ptr<AppendFile> file_;
  std::map<int64_t, std::string> lines_;
};

}  // namespace based
