// The results file of an evaluation: JSON lines, first the run's description, then one line for each document, in the order of the tasks
// and their documents. A run that is killed leaves a file that the next run continues.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/eval/eval_run.h"

namespace based {

class EvalResultsFile {
 public:
  // Opens or creates the file. Stored results are added to `tasks`, up to the last of `block_ends`, numbers of documents, that the file
  // reaches; the lines after it are removed. Throws UsageError if the file is another run's; Error if a line is damaged, the file cannot be
  // written, or another process writes to it.
  EvalResultsFile(const std::string& path, const Json& run, std::vector<EvalTaskRun>& tasks, const std::vector<size_t>& block_ends);

  size_t documents() const { return documents_; }  // whose results the next run keeps
  // Appends the results of documents [begin, end) of the task, a whole block, and makes them durable. Throws Error if the disk is full.
  void add_block(const EvalTaskRun& task, size_t begin, size_t end);

 private:
  void load(const std::string& text, size_t begin, std::vector<EvalTaskRun>& tasks);
  void require_same_run(const std::string& line, const Json& run) const;
  static std::string line_of(const EvalTaskRun& task, size_t index);

  std::string path_;
  FileLock lock_;
  std::unique_ptr<AppendFile> file_;
  size_t documents_ = 0;
  std::vector<size_t> line_ends_;  // offsets of the bytes after each loaded line
};

}  // namespace based
