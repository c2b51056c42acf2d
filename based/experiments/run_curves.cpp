#include "based/experiments/run_curves.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "based/core/files.h"
#include "based/core/json.h"

namespace based {
namespace {

double number_in(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) throw Error(where + ": has no number " + key);
  return found->get<double>();
}

// A step, a number of devices and the like.
int64_t count_in(const Json& object, const char* key, const std::string& where) {
  constexpr double kMost = 1e15;
  const double value = number_in(object, key, where);
  if (value < 0 || value > kMost || value != std::floor(value)) throw Error(where + ": " + key + " is not a whole number from 0 to 1e15");
  return static_cast<int64_t>(value);
}

Json object_in(std::string_view text, const std::string& where) {
  Json value = parse_json(text, where);
  if (!value.is_object()) throw Error(where + ": is not a JSON object");
  return value;
}

void for_each_line(const std::string& file, LastLine last, const std::function<void(const Json& line, const std::string& where)>& use) {
  const std::string text = read_regular_file(file);
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end == text.size() && last == LastLine::may_be_torn) return;
    const std::string where = file + ", line " + std::to_string(++number);
    use(object_in(std::string_view(text).substr(begin, end - begin), where), where);
    begin = end + 1;
  }
}

// A loss that is not finite is null in the file.
void add_loss(const Json& line, const char* key, int64_t step, const std::string& where, LossCurve& curve) {
  if (const auto found = line.find(key); found != line.end() && !found->is_null()) curve.emplace_back(step, number_in(line, key, where));
}

std::vector<RunCurves::Resumption> read_resumptions(const std::string& file) {
  std::vector<RunCurves::Resumption> resumptions;
  double last_seconds = 0;
  int64_t last_step = 0, last_devices = 0;
  for_each_line(file, LastLine::may_be_torn, [&](const Json& line, const std::string& where) {
    const int64_t step = count_in(line, "step", where), devices = line.contains("devices") ? count_in(line, "devices", where) : 0;
    const double seconds = number_in(line, "seconds", where);
    const bool repeated = last_step > 0 && step <= last_step;
    // Each process counts its own seconds.
    if (repeated || seconds < last_seconds || (last_step > 0 && devices != last_devices)) resumptions.push_back({step, repeated, devices});
    last_seconds = seconds, last_step = step, last_devices = devices;
  });
  return resumptions;
}

double read_step_tokens(const std::string& file) {
  const Json run = object_in(read_regular_file(file), file);
  const auto train = run.find("train");
  if (train == run.end() || !train->is_object()) throw Error(file + ": has no object train");
  return static_cast<double>(count_in(*train, "batch", file)) * static_cast<double>(count_in(*train, "length", file));
}

std::string describe(const RunCurves::Resumption& resumption) {
  const std::string devices = std::to_string(resumption.devices) + (resumption.devices == 1 ? " device" : " devices");
  return std::string(resumption.repeated ? "after a crash" : "after a stop") + (resumption.devices > 0 ? ": " + devices : "");
}

Plot plot_curves(const std::vector<RunCurves>& runs, const std::string& title, const std::string& label,
                 const std::function<LossCurve(const RunCurves&)>& curve_of) {
  Plot plot;
  plot.title = title + ": " + label;
  plot.x = {"training tokens", false, TickFormat::number, {}, {}};
  plot.y = {label + ", nats per token", false, TickFormat::number, {}, {}};
  plot.labels_at_end = true;
  std::map<std::string, PlotSeries> resumed;  // by description
  for (const RunCurves& run : runs) {
    const LossCurve curve = curve_of(run);
    if (curve.empty()) continue;
    const auto tokens = [&](int64_t step) { return static_cast<double>(step) * run.step_tokens; };
    PlotSeries& series = plot.series.emplace_back(PlotSeries{.label = run.name, .markers = false});
    for (const auto& [step, loss] : curve) series.points.emplace_back(tokens(step), loss);
    for (const RunCurves::Resumption& resumption : run.resumptions) {
      const auto at = std::find_if(curve.begin(), curve.end(), [&](const auto& point) { return point.first >= resumption.step; });
      if (at == curve.end()) continue;
      resumed[describe(resumption)].points.emplace_back(tokens(at->first), at->second);
    }
  }
  for (auto& [description, series] : resumed) {
    series.label = description, series.line = false;
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

LoggedLosses read_losses(const std::string& file, LastLine last) {
  LoggedLosses losses;
  for_each_line(file, last, [&](const Json& line, const std::string& where) {
    const int64_t step = count_in(line, "step", where);
    add_loss(line, "loss", step, where, losses.train);
    add_loss(line, "eval_loss", step, where, losses.held_out);
    if (const auto hash = line.find("order_hash"); hash != line.end() && hash->is_string()) {
      losses.order_hash = hash->get<std::string>();
      losses.order_step = step;
    }
  });
  return losses;
}

RunCurves read_run_curves(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  const auto file = [&](const char* name) {
    const std::string found = (path / name).string();
    if (!path_exists(found)) throw Error(found + ": there is no such file; name the folder of a run of `based train`");
    return found;
  };
  RunCurves curves;
  curves.name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  curves.step_tokens = read_step_tokens(file("run.json"));
  LoggedLosses losses = read_losses(file("metrics.jsonl"), LastLine::may_be_torn);
  curves.train = std::move(losses.train), curves.held_out = std::move(losses.held_out);
  if (const std::string timing = (path / "timing.jsonl").string(); path_exists(timing)) curves.resumptions = read_resumptions(timing);
  return curves;
}

std::vector<Figure> curve_figures(const std::vector<RunCurves>& runs, const std::string& title) {
  std::vector<Figure> figures;
  const auto add = [&](const char* name, Plot plot) {
    if (!plot.series.empty()) figures.push_back({name, std::move(plot)});
  };
  add("training-loss", plot_curves(runs, title, "training loss", [](const RunCurves& run) { return grouped(run.train); }));
  add("held-out-loss", plot_curves(runs, title, "held-out loss", [](const RunCurves& run) { return run.held_out; }));
  return figures;
}

}  // namespace based
