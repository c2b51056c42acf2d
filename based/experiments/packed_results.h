// The packed results of an experiment: results.jsonl, one run a line. A line is the JSON object of the run's own file without line breaks;
// lines are sorted by the run's key.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "based/core/error.h"

namespace based {

// The lines of results.jsonl, indexed by the runs' keys. The file is replaced as a whole, never changed in place.
class PackedResults {
 public:
  explicit PackedResults(std::string path) : path_(std::move(path)) {}
  PackedResults(const PackedResults&) = delete;
  PackedResults& operator=(const PackedResults&) = delete;

  const std::string& path() const { return path_; }
  // Reads the file if it has been replaced since the last call; an absent file has no lines. Throws Error as "<path>:<line>: …" for a
  // line that is not a JSON object with a string `key`, and for a key that two lines have.
  void refresh();

  struct Line {
    std::string_view text;  // valid until refresh() or write()
    int64_t number = 0;     // from 1
  };
  // As of the last refresh().
  const std::unordered_map<std::string, Line>& lines() const { return lines_; }
  const Line* find(const std::string& key) const;
  std::string where(const Line& line) const { return path_ + ":" + std::to_string(line.number); }

  // Replaces the file: the old one or the new one is there after a crash, whole. `lines`: the JSON text of each run by its key.
  void write(const std::map<std::string, std::string>& lines);

 private:
  using Stamp = std::array<int64_t, 4>;  // inode, size, and time of the last change in seconds and nanoseconds
  Stamp stamp() const;                   // zeros: there is no file
  std::unordered_map<std::string, Line> indexed_lines() const;

  std::string path_, text_;
  Stamp read_{};
  std::unordered_map<std::string, Line> lines_;
};

}  // namespace based
