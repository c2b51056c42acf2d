#include <algorithm>
#include <cmath>

#include "based/experiments/experiment.h"
#include "based/experiments/language_table.h"
#include "based/experiments/loss_curve.h"

namespace based {
namespace {

constexpr size_t kMostNamedSeries = 6;  // more labels next to their points would overlap

std::vector<LanguageOutcome> outcomes_of(const PointResult& point) {
  std::vector<LanguageOutcome> outcomes;
  for (const StoredRun* run : point.best) outcomes.push_back(read_stored([&] { return read_config<LanguageOutcome>(run->outcome); }));
  return outcomes;
}

Plot language_frame(const LanguageSummary& summary, const std::string& about, PlotAxis x, PlotAxis y) {
  Plot plot;
  plot.title = summary.title + about;
  plot.subtitle = "language models on held-out text";
  plot.footer = summary.setting;
  plot.x = std::move(x);
  plot.y = std::move(y);
  return plot;
}

// A perplexity of the points against the bytes of their states; `loss` is the mean nats of a run.
Plot against_bytes(const LanguageSummary& summary, const std::vector<PointResult>& points, const std::string& label,
                   const std::function<double(const LanguageOutcome&)>& loss) {
  Plot plot = language_frame(summary, "", {"bytes of recurrent state", true, TickFormat::bytes, {}, {}},
                             {label, false, TickFormat::number, {}, {}});
  for (const PointResult& point : points) {
    const std::vector<LanguageOutcome> outcomes = outcomes_of(point);
    if (outcomes.empty()) continue;
    double mean = 0, low = INFINITY, high = -INFINITY;
    for (const LanguageOutcome& outcome : outcomes) {
      const double nats = loss(outcome);
      mean += nats / static_cast<double>(outcomes.size());
      low = std::min(low, nats), high = std::max(high, nats);
    }
    if (!std::isfinite(mean)) continue;
    if (plot.series.empty() || plot.series.back().label != point.series) plot.series.push_back({.label = point.series});
    PlotSeries& series = plot.series.back();
    const auto bytes = static_cast<double>(outcomes.front().state_bytes);
    series.points.emplace_back(bytes, std::exp(mean));
    if (point.label.find(' ') != std::string::npos) series.line = false;  // several axes: a line would zigzag
    if (outcomes.size() > 1) series.bars.push_back({bytes, std::exp(low), std::exp(high)});
    if (!point.label.empty()) plot.notes.push_back({bytes, std::exp(mean), point.label});
  }
  plot.labels_at_end = plot.series.size() > kMostNamedSeries;
  return plot;
}

LossCurve evaluation_curve(const LanguageOutcome& outcome) {
  LossCurve losses;
  for (size_t i = 0; i < outcome.evaluation_steps.size(); ++i) losses.emplace_back(outcome.evaluation_steps[i], outcome.evaluation_loss[i]);
  return losses;
}

LossCurve training_curve(const LanguageOutcome& outcome) {
  LossCurve losses;
  for (size_t i = 0; i < outcome.train_steps.size(); ++i) losses.emplace_back(outcome.train_steps[i], outcome.train_loss[i]);
  return grouped(losses);
}

// The curve of each point: of its first seed.
Plot curve_plot(const LanguageSummary& summary, const std::vector<PointResult>& points, const std::string& label,
                LossCurve (*curve)(const LanguageOutcome&)) {
  Plot plot = language_frame(summary, ": " + label, {"training tokens", true, TickFormat::number, {}, {}},
                             {label + ", nats per token", false, TickFormat::number, {}, {}});
  plot.labels_at_end = true;
  for (const PointResult& point : points) {
    if (point.best.empty()) continue;
    const LossCurve losses = curve(outcomes_of(point).front());
    if (losses.empty()) continue;
    plot.series.push_back({.label = point_name(point.series, point.label), .markers = false});
    for (const auto& [step, loss] : losses) plot.series.back().points.emplace_back(static_cast<double>(step * summary.step_tokens), loss);
  }
  return plot;
}

}  // namespace

std::vector<Figure> language_figures(const LanguageSummary& summary, const std::vector<PointResult>& points) {
  std::vector<Figure> figures;
  const auto add = [&](const char* name, Plot plot) {
    if (!plot.series.empty()) figures.push_back({name, std::move(plot)});
  };
  add("figure", against_bytes(summary, points, "perplexity", [](const LanguageOutcome& outcome) { return outcome.loss; }));
  for (size_t i = 0; i < summary.thresholds.size(); ++i) {
    const std::string threshold = std::to_string(summary.thresholds[i]);
    add(("ar-" + threshold).c_str(), against_bytes(summary, points, "perplexity of AR tokens, threshold " + threshold,
                                                   [i](const LanguageOutcome& outcome) { return outcome.ar_loss(i); }));
  }
  add("held-out-loss", curve_plot(summary, points, "held-out loss", evaluation_curve));
  add("training-loss", curve_plot(summary, points, "training loss", training_curve));
  return figures;
}

}  // namespace based
