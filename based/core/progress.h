// The progress line of a long command, on stderr:
//   train  [#########---------------------]  31 %  620/2000  loss 2.314  tokens/s 18.2k  ETA 1m32s
// On a terminal it is redrawn in place. Otherwise a plain line is printed about every ten seconds, for log files.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace based {

struct ProgressOptions {
  bool quiet = false;          // draw nothing
  int descriptor = 2;          // stderr
  int terminal_width = 0;      // columns of the terminal; 0: query the terminal; below 0: no terminal, plain lines
  double plain_interval = 10;  // seconds between plain lines
  double delay = 0;            // seconds before the first line; shorter work draws nothing
};

// The delay for loops that usually finish at once, but take minutes for millions of items.
inline constexpr double kProgressDelay = 1;

class Progress {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;  // name, displayed value

  // `done` of `total` steps are already completed in a resumed run. A total of 0 means unknown: no bar and no ETA.
  Progress(const std::string& label, int64_t total, ProgressOptions options = {}, int64_t done = 0);
  ~Progress();  // calls finish()
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done, Fields fields = {});  // cheap enough for every step: draws at most ten times a second
  void finish();                                  // draws the last state and ends the line

 private:
  std::string line(int columns) const;  // columns < 0: no limit and no bar
  void draw(bool last);
  bool is_delayed() const;

  friend void write_above_progress(std::string_view text);

  std::string label_;
  int64_t total_, first_, done_;
  ProgressOptions options_;
  Fields fields_;
  double started_, last_drawn_;
  bool terminal_ = false, finished_ = false, dirty_ = true;
};

// Writes to stderr and keeps a progress line there intact: clears it first and redraws it afterwards.
void write_above_progress(std::string_view text);

std::string format_duration(double seconds);  // "4.2s", "1m32s", "3h05m"
std::string format_count(double count);       // "950", "18.2k", "1.35M"
std::string format_bytes(double bytes);       // "512 B", "6.1 MiB"

}  // namespace based
