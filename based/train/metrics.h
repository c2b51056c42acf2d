// The metrics files in a run's folder:
//   metrics.jsonl               one JSON object per line, without timings, so that a resumed run's file equals an uninterrupted run's
//   timing.jsonl                seconds, tokens per second, peak memory and devices, of repeated steps too
//   tensorboard/…tfevents…      both, for TensorBoard
// While the disk is full, lines are buffered in memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "based/core/files.h"
#include "based/core/json.h"

namespace based {

// The sizes of the files when a checkpoint was made. A run that resumes from the checkpoint truncates them to these sizes.
struct MetricsPosition {
  int64_t metrics = 0, tensorboard = 0;  // bytes

  template <class Visitor>
  void visit(Visitor&& field) {
    field("metrics", metrics, "bytes of metrics.jsonl");
    field("tensorboard", tensorboard, "bytes of the TensorBoard file");
  }
};

struct Timing {
  int64_t step = 0;
  double seconds = 0, tokens_per_second = 0;
  int64_t peak_memory = 0;
  int64_t devices = 1;
  std::optional<double> mfu = {};
  std::string mfu_peak = {};  // the peak rate that the MFU divides by
};

class Metrics {
 public:
  // Appends to the files of `folder`, which must exist, after truncating them to `resume_at`; warns if metrics.jsonl is shorter than that.
  // Without `resume_at` the files are emptied.
  Metrics(const std::string& folder, const std::optional<MetricsPosition>& resume_at);

  // `line` has "step". Its other numbers are also written to TensorBoard: "eval_loss" as "eval/loss", "loss" as "train/loss".
  void write(const Json& line);
  void write_timing(const Timing& timing);
  MetricsPosition position();  // writes buffered lines first; throws Error if the disk is full
  void sync() const;           // makes the lines before position() durable; another thread may write lines meanwhile

 private:
  void scalars(const Json& line);
  void append(AppendFile& file, const std::string& record);

  AppendFile metrics_, timing_, tensorboard_;
  bool warned_ = false;
};

}  // namespace based
