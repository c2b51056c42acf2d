#include "bench/figures.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "based/core/config.h"
#include "based/core/text.h"
#include "based/models/device.h"
#include "based/runtime/replay.h"

namespace based::bench {
namespace {

// The first line of a library's message, without its backtrace.
std::string first_line(const std::string& message) { return message.substr(0, std::min<size_t>(message.find('\n'), 200)); }

bool is_out_of_memory(const std::string& message) { return message.find("out of memory") != std::string::npos; }

constexpr const char* kDoesNotFit = "does not fit into memory";

FigurePoint measure_point(int64_t size, const std::function<Measured(int64_t)>& measure) {
  FigurePoint point{.x = static_cast<double>(size)};
  const auto refused = [&](const std::string& message) { point.missing = is_out_of_memory(message) ? kDoesNotFit : first_line(message); };
  try {
    const Measured measured = measure(size);
    point.value = measured.value, point.floor = measured.floor, point.bound = measured.bound;
  } catch (const c10::OutOfMemoryError&) {
    point.missing = kDoesNotFit;
  } catch (const c10::Error& error) {
    refused(error.what_without_backtrace());
  } catch (const Error& error) {
    refused(error.what());
  }
  return point;
}

}  // namespace

const std::vector<FigurePart>& figure_parts() {
  static const std::vector<FigurePart> all = [] {
    std::vector<FigurePart> parts = operator_figures();
    for (FigurePart& part : model_figures()) parts.push_back(std::move(part));
    return parts;
  }();
  return all;
}

const FigurePart& find_figure(const std::string& name) {
  std::vector<std::string> names;
  names.reserve(figure_parts().size());
  for (const FigurePart& part : figure_parts()) {
    if (part.name == name) return part;
    names.push_back(part.name);
  }
  const std::string close = nearest(name, names);
  throw UsageError("no figure '" + name + "'" + (close.empty() ? "" : "; did you mean '" + close + "'?") +
                   " `based bench figures --list` lists them");
}

void measure_series(FigureRun& run, Figure& figure, FigureSeries series, const std::vector<int64_t>& sizes,
                    const std::function<Measured(int64_t)>& measure) {
  bool fits = true;
  for (const int64_t size : sizes) {
    FigurePoint point{.x = static_cast<double>(size), .missing = "not tried, because a smaller size does not fit into memory"};
    if (run.context.device.is_cuda()) release_cached_memory(run.context.device);
    if (fits) point = measure_point(size, measure);
    fits = fits && point.missing != kDoesNotFit;
    series.points.push_back(point);
    if (run.report) run.report(figure, series, point);
  }
  figure.series.push_back(std::move(series));
}

double seconds_per_call(torch::Device device, int64_t calls, int repeats, const std::function<void(int64_t)>& call) {
  const std::unique_ptr<runtime::Replay> replay = runtime::record(device, [&] {
    for (int64_t i = 0; i < calls; ++i) call(i);
  });
  return median_seconds(
             [&] {
               replay->run();
               synchronize(device);
             },
             repeats) /
         static_cast<double>(calls);
}

Measured time_with_floor(FigureRun& run, double seconds, double bytes, double operations) {
  const double traffic = bytes / (run.context.ceilings.copy_gb_s() * 1e9),
               arithmetic = operations / (run.context.ceilings.product_gflops() * 1e9);
  return {seconds * 1e3, std::max(traffic, arithmetic) * 1e3, arithmetic > traffic ? "bf16 GEMM" : "copy"};
}

int64_t copies_beyond_cache(const Context& context, int64_t bytes) {
  constexpr int64_t beyond_cache = int64_t{256} << 20;
  return context.quick ? 2 : std::clamp<int64_t>(beyond_cache / bytes + 1, 2, 256);
}

std::vector<int64_t> powers_of_two(int first, int last) {
  std::vector<int64_t> sizes;
  for (int power = first; power <= last; ++power) sizes.push_back(int64_t{1} << power);
  return sizes;
}

// --- as JSON

namespace {

Json to_json(const FigurePoint& point, const std::string& unit) {
  if (!point.missing.empty()) return {{"x", point.x}, {"missing", point.missing}};
  Json json{{"x", point.x}, {"value", point.value}};
  if (point.floor == 0) return json;
  json["floor"] = point.floor;
  json["floor_fraction"] = unit == "ms" ? point.floor / point.value : point.value / point.floor;
  json["bound"] = point.bound;
  return json;
}

FigurePoint point_from_json(const Json& json) {
  FigurePoint point{.x = json.at("x").get<double>(), .missing = json.value("missing", "")};
  if (!point.missing.empty()) return point;
  point.value = json.at("value").get<double>();
  point.floor = json.value("floor", 0.0);
  point.bound = json.value("bound", "");
  return point;
}

Json to_json(const FigureVerdict& verdict) {
  Json json{{"claim", verdict.claim}, {"ours", verdict.ours}, {"other", verdict.other}, {"x", verdict.x}, {"claimed", verdict.claimed}};
  if (!verdict.why.empty()) {
    json["not_judged"] = verdict.why;
    return json;
  }
  json["measured"] = verdict.measured;
  json["reached"] = verdict.measured >= verdict.claimed;
  if (verdict.to_paper > 0) json["to_paper"] = verdict.to_paper;
  return json;
}

FigureVerdict verdict_from_json(const Json& json) {
  return {.claim = json.at("claim").get<std::string>(),
          .ours = json.at("ours").get<std::string>(),
          .other = json.at("other").get<std::string>(),
          .x = json.at("x").get<double>(),
          .claimed = json.at("claimed").get<double>(),
          .measured = json.value("measured", 0.0),
          .to_paper = json.value("to_paper", 0.0),
          .why = json.value("not_judged", "")};
}

}  // namespace

Json to_json(const Figure& figure) {
  Json series = Json::array(), verdicts = Json::array();
  for (const FigureSeries& one : figure.series) {
    Json points = Json::array();
    for (const FigurePoint& point : one.points) points.push_back(to_json(point, figure.unit));
    series.push_back({{"label", one.label}, {"how", one.how}, {"ours", one.ours}, {"paper", one.paper}, {"points", points}});
  }
  for (const FigureVerdict& verdict : figure.verdicts) verdicts.push_back(to_json(verdict));
  return {{"name", figure.name}, {"title", figure.title}, {"subtitle", figure.subtitle}, {"x", figure.x_label},
          {"unit", figure.unit}, {"series", series},      {"verdicts", verdicts}};
}

Figure figure_from_json(const Json& json) {
  try {
    Figure figure{.name = json.at("name").get<std::string>(),
                  .title = json.at("title").get<std::string>(),
                  .subtitle = json.at("subtitle").get<std::string>(),
                  .x_label = json.at("x").get<std::string>(),
                  .unit = json.at("unit").get<std::string>()};
    for (const Json& one : json.at("series")) {
      FigureSeries& series = figure.series.emplace_back(FigureSeries{.label = one.at("label").get<std::string>(),
                                                                     .how = one.at("how").get<std::string>(),
                                                                     .ours = one.at("ours").get<bool>(),
                                                                     .paper = one.at("paper").get<bool>()});
      for (const Json& point : one.at("points")) series.points.push_back(point_from_json(point));
    }
    for (const Json& verdict : json.at("verdicts")) figure.verdicts.push_back(verdict_from_json(verdict));
    return figure;
  } catch (const Json::exception& error) {
    throw Error(std::string("not a figure of `based bench figures`: ") + error.what());
  }
}

// --- as a picture and as lines

Plot figure_plot(const Figure& figure, const std::string& footer) {
  Plot plot;
  plot.title = figure.title;
  plot.subtitle = figure.subtitle;
  plot.footer = footer;
  plot.x = {figure.x_label, true, TickFormat::powers_of_two, {}, {}};
  plot.y = {figure.unit == "ms" ? "milliseconds" : "tokens per millisecond", true, TickFormat::number, {}, {}};
  plot.labels_at_end = true;
  for (const FigureSeries& series : figure.series) {
    PlotSeries curve{.label = series.label, .line = !series.paper, .emphasis = series.ours};
    const FigurePoint* last = nullptr;
    bool ends = false;
    for (const FigurePoint& point : series.points) {
      if (point.missing.empty()) curve.points.emplace_back(point.x, point.value), last = &point;
      ends = ends || point.missing == kDoesNotFit;
    }
    if (curve.points.empty()) continue;
    if (ends) plot.notes.push_back({last->x, last->value, "larger sizes do not fit into memory"});
    plot.series.push_back(std::move(curve));
  }
  return plot;
}

std::string to_line(const Figure& figure, const FigureSeries& series, const FigurePoint& point) {
  const std::string head =
      padded(figure.name, 23) + " " + padded(series.label, 32) + " " + padded_left(format_number(point.x, 0), 6) + ": ";
  if (!point.missing.empty()) return head + point.missing;
  const double fraction = figure.unit == "ms" ? point.floor / point.value : point.value / point.floor;
  std::string line = head + padded_left(format_number(point.value, point.value < 10 ? 4 : 1), 10) + " " + figure.unit;
  if (point.floor > 0)
    line += ", " + format_number(100 * fraction, 0) + " % of floor " + format_number(point.floor, point.floor < 10 ? 4 : 1) + " (" +
            point.bound + ")";
  return line;
}

std::string to_line(const FigureVerdict& verdict) {
  const std::string head = "paper's claim: " + verdict.claim + ". ";
  if (!verdict.why.empty()) return head + "Not judged: " + verdict.why;
  std::string line = head + "Measured: " + format_number(verdict.measured, 2) + " times, claimed " + format_number(verdict.claimed, 2) +
                     ": " + (verdict.measured >= verdict.claimed ? "reached" : "not reached");
  if (verdict.to_paper > 0)
    line += "; " + format_number(verdict.to_paper, 2) + " times the paper's own number for " + verdict.other + " (one H100)";
  return line;
}

}  // namespace based::bench
