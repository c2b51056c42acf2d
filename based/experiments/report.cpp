#include "based/experiments/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr size_t kResultsPerUpdate = 1024;  // runs

// Chooses the rate with the best mean over its finished seeds. Rates with a failed seed count only if every rate has one.
void choose_best(PointResult& point, const std::vector<const StoredRun*>& runs, const ExperimentFile& file) {
  std::map<double, std::vector<const StoredRun*>> rates;
  std::map<double, bool> failed;
  for (const StoredRun* run : runs) {
    if (run->failed.empty()) {
      rates[run->learning_rate].push_back(run);
    } else {
      failed[run->learning_rate] = true;
    }
  }
  bool best_failed = true;
  for (const auto& [rate, seeds] : rates) {
    double sum = 0, low = INFINITY, high = -INFINITY;
    for (const StoredRun* run : seeds) {
      const double value = file.experiment->score(*run);
      sum += value;
      low = std::min(low, value), high = std::max(high, value);
    }
    const double mean = sum / static_cast<double>(seeds.size());
    const bool better =
        point.best.empty() || failed[rate] < best_failed || (failed[rate] == best_failed && file.kind->is_better(mean, point.score));
    if (!better) continue;
    point.best = seeds;
    best_failed = failed[rate];
    point.learning_rate = rate;
    point.score = mean, point.low = low, point.high = high;
  }
}

// Runs of a point usually follow each other in the plan, which saves most look-ups, but need not.
std::vector<PointResult> points_of(const ExperimentFile& file, const std::vector<std::unique_ptr<StoredRun>>& stored) {
  std::vector<PointResult> points;
  std::vector<std::vector<const StoredRun*>> kept;
  std::map<std::pair<std::string, std::string>, size_t> found;
  const PlannedRate* last = nullptr;
  size_t at = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    const PlannedRate* rate = file.runs()[i].rate.get();
    if (rate != last) {
      const auto [place, is_new] = found.try_emplace({rate->series, rate->label}, points.size());
      at = place->second;
      if (is_new) {
        PointResult& point = points.emplace_back();
        point.series = rate->series, point.label = rate->label, point.planned = rate;
        kept.emplace_back();
      }
      last = rate;
    }
    ++points[at].runs;
    if (stored[i] == nullptr) continue;
    ++(stored[i]->failed.empty() ? points[at].done : points[at].failed);
    kept[at].push_back(stored[i].get());
  }
  for (size_t i = 0; i < kept.size(); ++i) choose_best(points[i], kept[i], file);
  return points;
}

Json json_of(const Config& config) { return parse_json(config.to_json(-1), "a run"); }

std::string count_text(double value) { return std::isfinite(value) ? std::to_string(std::llround(value)) : "-"; }

}  // namespace

Report make_report(const ExperimentFile& file, const ResultsFolder& results) {
  const std::vector<PlannedRun>& runs = file.runs();
  const std::unordered_set<std::string> kept = results.keys();
  Report report;
  report.runs.resize(runs.size());
  Progress progress("experiment: results", static_cast<int64_t>(runs.size()), {.delay = kProgressDelay});
  for (size_t i = 0; !kept.empty() && i < runs.size(); ++i) {
    for (const torch::DeviceType device : {torch::kCUDA, torch::kCPU}) {
      if (!kept.contains(run_key(*file.kind, runs[i], device))) continue;
      auto stored = results.read(file, i, device, false);
      if (!stored) continue;
      report.runs[i] = std::make_unique<StoredRun>(std::move(*stored));
      break;
    }
    if ((i + 1) % kResultsPerUpdate == 0 || i + 1 == runs.size()) progress.update(static_cast<int64_t>(i + 1));
  }
  report.points = points_of(file, report.runs);
  return report;
}

std::string report_json(const ExperimentFile& file, const Report& report) {
  Json points = Json::array();
  for (size_t i = 0; i < report.runs.size(); ++i) {
    if (!report.runs[i] || !report.runs[i]->failed.empty()) continue;
    const StoredRun& run = *report.runs[i];
    Json point{{"name", file.runs()[i].rate->series}, {"label", file.runs()[i].rate->label},
               {"config", json_of(run.config)},       {"key", run.key},
               {"learning_rate", run.learning_rate},  {"seed", run.seed}};
    point.update(json_of(run.outcome));
    point["seconds"] = run.seconds;
    point["device"] = run.device;
    points.push_back(std::move(point));
  }
  return dump_json({{"points", std::move(points)}});
}

std::vector<std::string> report_lines(const ExperimentFile& file, const Report& report) {
  std::vector<std::string> lines{padded_left(file.kind->score, 9) + "       rate  state bytes  parameters     runs  point"};
  int64_t done = 0, failed = 0, runs = 0;
  for (const PointResult& point : report.points) {
    done += point.done, failed += point.failed, runs += point.runs;
    std::string line = padded_left(point.best.empty() ? "-" : format_number(point.score, 4), 9);
    line += padded_left(point.best.empty() ? "-" : Config(point.learning_rate).to_json(-1).substr(0, 9), 11);
    line += padded_left(point.best.empty() ? "-" : count_text(figure_of(*point.best[0], "state_bytes")), 13);
    line += padded_left(std::to_string(point.planned->parameters), 12);
    line += padded_left(std::to_string(point.done) + "/" + std::to_string(point.runs), 9);
    lines.push_back(line + "  " + point_name(point.series, point.label) +
                    (point.failed > 0 ? ", " + std::to_string(point.failed) + " failed" : ""));
  }
  for (size_t i = 0; i < report.runs.size(); ++i)
    if (report.runs[i] && !report.runs[i]->failed.empty())
      lines.push_back("failed: " + run_name(file.runs()[i]) + ": " + report.runs[i]->failed);
  lines.push_back(std::to_string(done) + " of " + std::to_string(runs) + " runs are done, " + std::to_string(failed) + " failed, " +
                  std::to_string(runs - done - failed) + " missing");
  return lines;
}

}  // namespace based
