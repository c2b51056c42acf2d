// What a run leaves behind about itself, in its folder:
//   metrics.jsonl               one JSON object a line, no figure of time among them: a resumed run's file equals an uninterrupted one's
//   timing.jsonl                seconds, tokens a second and peak memory, of every step that really ran, those that a crash took back too
//   tensorboard/…tfevents…      both, for TensorBoard
// While the disk is full, lines wait in memory.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "based/core/files.h"
#include "based/core/json.h"

namespace based {

// How far the files were written when a checkpoint was made; what came later is cut off when the run goes on from there.
struct MetricsPosition {
  int64_t metrics = 0, tensorboard = 0;  // bytes

  template <class Visitor>
  void visit(Visitor&& field) {
    field("metrics", metrics, "bytes of metrics.jsonl");
    field("tensorboard", tensorboard, "bytes of the TensorBoard file");
  }
};

class Metrics {
 public:
  // Goes on at `from` in the files of `folder`, which exists, and warns where they have become shorter; without `from` they begin anew.
  Metrics(const std::string& folder, const std::optional<MetricsPosition>& from);

  // `line` has "step"; its other numbers go to TensorBoard too, "eval_loss" as "eval/loss" and "loss" as "train/loss".
  void write(const Json& line);
  void write_timing(int64_t step, double seconds, double tokens_per_second, int64_t peak_memory);
  MetricsPosition position();  // everything before it is on disk; throws Error where the disk is full

 private:
  void scalars(const Json& line);
  void append(AppendFile& file, const std::string& record);

  AppendFile metrics_, timing_, tensorboard_;
  bool warned_ = false;
};

}  // namespace based
