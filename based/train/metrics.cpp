#include "based/train/metrics.h"

#include <chrono>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/log.h"
#include "based/core/tensorboard.h"

namespace based {
namespace {

std::string tensorboard_file(const std::string& folder) {
  const std::string path = path_in(folder, "tensorboard");
  make_folder(path);
  return path_in(path, "events.out.tfevents.0.based");
}

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Metrics::Metrics(const std::string& folder, const std::optional<MetricsPosition>& resume_at)
    : metrics_(path_in(folder, "metrics.jsonl"), resume_at ? static_cast<uint64_t>(resume_at->metrics) : 0),
      timing_(path_in(folder, "timing.jsonl"), resume_at ? UINT64_MAX : 0),
      tensorboard_(tensorboard_file(folder), resume_at ? static_cast<uint64_t>(resume_at->tensorboard) : 0) {
  if (resume_at && metrics_.size() < static_cast<uint64_t>(resume_at->metrics)) {
    log_warning(path_in(folder, "metrics.jsonl") + ": has " + std::to_string(metrics_.size()) + " bytes, but the checkpoint was made at " +
                std::to_string(resume_at->metrics) + "; the lines in between are lost, the run continues");
  }
  if (tensorboard_.size() == 0) append(tensorboard_, tensorboard_start(wall_time()));
}

void Metrics::append(AppendFile& file, const std::string& record) {
  if (file.append(record) || warned_) return;
  warned_ = true;
  log_warning("metrics cannot be written (is the disk full?); they are buffered in memory until they can be");
}

void Metrics::scalars(const Json& line) {
  std::vector<std::pair<std::string, double>> tags;
  for (const auto& [key, value] : line.items()) {
    if (key == "step" || !value.is_number()) continue;
    tags.emplace_back(key.starts_with("eval_") ? "eval/" + key.substr(5) : "train/" + key, value.get<double>());
  }
  append(tensorboard_, tensorboard_scalars(wall_time(), line.at("step").get<int64_t>(), tags));
}

void Metrics::write(const Json& line) {
  append(metrics_, dump_json(line) + "\n");
  scalars(line);
}

void Metrics::write_timing(const Timing& timing) {
  Json line{{"step", timing.step},
            {"seconds", timing.seconds},
            {"tokens_per_second", timing.tokens_per_second},
            {"peak_memory_bytes", timing.peak_memory},
            {"devices", timing.devices}};
  if (timing.mfu) line.update({{"mfu", *timing.mfu}, {"mfu_peak", timing.mfu_peak}});
  append(timing_, dump_json(line) + "\n");
  scalars(line);
}

MetricsPosition Metrics::position() {
  metrics_.flush();
  tensorboard_.flush();
  return {static_cast<int64_t>(metrics_.size()), static_cast<int64_t>(tensorboard_.size())};
}

void Metrics::sync() const {
  metrics_.sync_written();
  tensorboard_.sync_written();
}

}  // namespace based
