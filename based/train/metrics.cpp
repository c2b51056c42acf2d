#include "based/train/metrics.h"

#include <chrono>
#include <filesystem>

#include "based/core/folders.h"
#include "based/core/log.h"
#include "based/core/tensorboard.h"

namespace based {
namespace {

std::string in(const std::string& folder, const char* name) { return (std::filesystem::path(folder) / name).string(); }

std::string tensorboard_file(const std::string& folder) {
  const std::string path = in(folder, "tensorboard");
  make_folder(path);
  return in(path, "events.out.tfevents.0.based");
}

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

Metrics::Metrics(const std::string& folder, const std::optional<MetricsPosition>& from)
    : metrics_(in(folder, "metrics.jsonl"), from ? static_cast<uint64_t>(from->metrics) : 0),
      timing_(in(folder, "timing.jsonl"), from ? UINT64_MAX : 0),
      tensorboard_(tensorboard_file(folder), from ? static_cast<uint64_t>(from->tensorboard) : 0) {
  if (from && metrics_.size() < static_cast<uint64_t>(from->metrics)) {
    log_warning(in(folder, "metrics.jsonl") + ": has " + std::to_string(metrics_.size()) + " bytes where the checkpoint was made after " +
                std::to_string(from->metrics) + "; the lines in between are lost, the run goes on");
  }
  if (tensorboard_.size() == 0) append(tensorboard_, tensorboard_start(wall_time()));
}

void Metrics::append(AppendFile& file, const std::string& record) {
  if (file.append(record) || warned_) return;
  warned_ = true;
  log_warning("metrics cannot be written (is the disk full?); they wait in memory until they can");
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

void Metrics::write_timing(int64_t step, double seconds, double tokens_per_second, int64_t peak_memory) {
  const Json line{{"step", step}, {"seconds", seconds}, {"tokens_per_second", tokens_per_second}, {"peak_memory_bytes", peak_memory}};
  append(timing_, dump_json(line) + "\n");
  scalars(line);
}

MetricsPosition Metrics::position() {
  metrics_.sync();
  tensorboard_.sync();
  return {static_cast<int64_t>(metrics_.size()), static_cast<int64_t>(tensorboard_.size())};
}

}  // namespace based
