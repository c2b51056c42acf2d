#include "based/experiments/recall_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/core/text_table.h"
#include "based/experiments/experiment.h"
#include "based/mixers/kit/mixer.h"

namespace based {
namespace {

constexpr size_t most_labels = 6;  // series with labels next to their points; more labels would overlap

// An option of a layer's mixer, or its default if it is not set.
int64_t option(const ModelConfig& model, const std::string& layer, const std::string& name) {
  const auto named = model.mixers.find(layer);
  const Config* set = named == model.mixers.end() ? nullptr : named->second.find(name);
  if (set != nullptr) {
    int64_t value = 0;
    config_detail::read(*set, value, name);
    return value;
  }
  const std::string type = named == model.mixers.end() ? layer : std::get<std::string>(named->second.find("type")->value());
  for (const FieldHelp& help : find_mixer(type).help())
    if (help.name == name) return std::stoll(help.default_value);
  return 0;
}

struct PaperState {
  const char* mixer;
  int64_t (*elements)(const ModelConfig& model, const std::string& layer, int64_t tokens);
};
// As the published code counts them: keys and values for attention; features times values, and the sum of the features, for linear
// attention; the taps of a convolution.
constexpr std::array paper_states{
    PaperState{"attention", [](const ModelConfig& model, const std::string&, int64_t tokens) { return 2 * tokens * model.d_model; }},
    PaperState{"sliding_window", [](const ModelConfig& model, const std::string& layer,
                                    int64_t tokens) { return 2 * std::min(option(model, layer, "window"), tokens) * model.d_model; }},
    PaperState{"taylor_attention",
               [](const ModelConfig& model, const std::string& layer, int64_t) {
                 const int64_t d = option(model, layer, "feature_dim"), heads = option(model, layer, "heads"),
                               given = option(model, layer, "head_dim");
                 const int64_t features = 1 + d + d * d, head_dim = given > 0 ? given : model.d_model / heads;
                 return heads * features * (head_dim + 1);
               }},
    PaperState{"base_conv",
               [](const ModelConfig& model, const std::string& layer, int64_t) {
                 const int64_t taps = option(model, layer, "kernel_size");
                 return (taps > 0 ? taps : option(model, layer, "l_max")) * model.d_model;
               }},
    PaperState{"mamba", [](const ModelConfig& model, const std::string& layer,
                           int64_t) { return 2 * model.d_model * option(model, layer, "d_state"); }},
    PaperState{"h3",
               [](const ModelConfig& model, const std::string& layer, int64_t) { return model.d_model * option(model, layer, "d_state"); }},
    PaperState{"hyena", [](const ModelConfig& model, const std::string&, int64_t tokens) { return model.d_model * tokens; }},
};

std::string labelled(const RecallSegment& segment) { return std::to_string(segment.pairs) + " pairs in " + std::to_string(segment.length); }

std::vector<const PointResult*> finished(const std::vector<PointResult>& points) {
  std::vector<const PointResult*> found;
  for (const PointResult& point : points)
    if (!point.best.empty()) found.push_back(&point);
  return found;
}

// The mean of lists, one per seed. It is as long as the shortest list, because a run that stopped early has fewer epochs.
std::vector<double> mean_of(const std::vector<std::vector<double>>& seeds) {
  std::vector<double> mean = seeds.front();
  for (size_t seed = 1; seed < seeds.size(); ++seed) {
    mean.resize(std::min(mean.size(), seeds[seed].size()));
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += seeds[seed][i];
  }
  for (double& value : mean) value /= static_cast<double>(seeds.size());
  return mean;
}

std::vector<double> mean_segments(const PointResult& point) {
  std::vector<std::vector<double>> seeds;
  for (const StoredRun* run : point.best) seeds.push_back(figures_of(*run, "segments"));
  return mean_of(seeds);
}

// The score after each epoch.
std::vector<double> by_epoch(const RecallSummary& summary, const StoredRun& run) {
  const RecallTask& task = summary.task;
  std::vector<double> epochs;
  const Config* rows = run.outcome.find("by_epoch");
  if (rows == nullptr || !rows->is_array()) return epochs;
  for (const Config& row : std::get<Config::Array>(rows->value())) {
    std::vector<double> segments;
    config_detail::read(row, segments, "by_epoch");
    double sum = 0, examples = 0;
    const size_t count = std::min(segments.size(), task.test.size());
    for (size_t i = summary.last_segment && count > 0 ? count - 1 : 0; i < count; ++i) {
      sum += segments[i] * static_cast<double>(task.test[i].examples);
      examples += static_cast<double>(task.test[i].examples);
    }
    epochs.push_back(sum / std::max(examples, 1.0));
  }
  return epochs;
}

double state_bytes_of(const PointResult& point) { return figure_of(*point.best.front(), "state_bytes"); }

// The median of the points' bytes of state.
double median_bytes(const std::vector<const PointResult*>& points) {
  std::vector<double> bytes;
  for (const PointResult* point : points) bytes.push_back(state_bytes_of(*point));
  std::nth_element(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2), bytes.end());
  return bytes[bytes.size() / 2];
}

// For each series the point with the best recall among those with at most `most` bytes of state, or its smallest point if all need more.
std::vector<const PointResult*> best_from(const std::vector<const PointResult*>& points, double most) {
  const auto is_better = [&](const PointResult& one, const PointResult& other) {
    const double bytes = state_bytes_of(one), others = state_bytes_of(other);
    if (bytes > most && others > most) return bytes < others;
    return others > most || (bytes <= most && one.score > other.score);
  };
  std::vector<const PointResult*> best;
  for (const PointResult* point : points) {
    const auto same = std::find_if(best.begin(), best.end(), [&](const PointResult* other) { return other->series == point->series; });
    if (same == best.end()) {
      best.push_back(point);
    } else if (is_better(*point, **same)) {
      *same = point;
    }
  }
  return best;
}

// The limit for best_from(), within a factor of two of the median, for which the sizes of the series' best points differ least.
double common_bytes(const std::vector<const PointResult*>& points) {
  const double median = median_bytes(points);
  double common = median, least = std::numeric_limits<double>::infinity();
  for (const PointResult* point : points) {
    const double most = state_bytes_of(*point);
    if (most < median / 2 || most > median * 2) continue;
    double apart = 0;
    for (const PointResult* best : best_from(points, most)) apart += std::abs(std::log2(state_bytes_of(*best) / most));
    if (apart < least) least = apart, common = most;
  }
  return common;
}

std::string made_from(const RecallSummary& summary, bool with_range) {
  int64_t examples = 0;
  for (const auto& segment : summary.task.train) examples += segment.examples;
  return "vocabulary " + std::to_string(summary.task.vocab_size) + ", " + std::to_string(examples) + " training examples" +
         (summary.training.epochs == 1 ? "" : " x " + std::to_string(summary.training.epochs) + " epochs") +
         (summary.rates > 1 ? "; best of " + std::to_string(summary.rates) + " rates" : "") +
         (summary.seeds > 1 ? std::string("; mean ") + (with_range ? "and range of " : "of ") + std::to_string(summary.seeds) + " seeds"
                            : "");
}

// A note for the footer if not all runs of the plotted points are done, so that their scores may still rise.
std::string unfinished(const std::vector<const PointResult*>& points) {
  const auto is_unfinished = [](const PointResult* point) { return point->done + point->failed < point->runs; };
  const auto count = std::count_if(points.begin(), points.end(), is_unfinished);
  return count == 0 ? "" : "; at " + std::to_string(count) + (count == 1 ? " point" : " points") + " not all rates yet";
}

std::string subtitle_of(const RecallTask& task) {
  const RecallSegment& last = task.test.back();
  return "multi-query associative recall, up to " + std::to_string(last.pairs) + " pairs in " + std::to_string(last.length) + " tokens";
}

Plot frame(const RecallSummary& summary) {
  Plot plot;
  plot.title = summary.title;
  plot.subtitle = subtitle_of(summary.task);
  plot.y = {summary.last_segment ? "recall of " + labelled(summary.task.test.back()) : "recall", false, TickFormat::percent, 0.0, 1.0};
  plot.footer = made_from(summary, false);
  return plot;
}

// The cost of a point: bytes of state, or number of parameters.
using CostOf = double (*)(const PointResult& point);
double parameters_of(const PointResult& point) { return static_cast<double>(point.planned->parameters); }

// A step function of the cost: the best score among the points of at most that cost.
PlotSeries frontier(const std::vector<const PointResult*>& points, CostOf cost_of) {
  std::vector<std::pair<double, double>> all;
  all.reserve(points.size());
  for (const PointResult* point : points) all.emplace_back(cost_of(*point), point->score);
  std::sort(all.begin(), all.end());
  PlotSeries stairs{.label = "Pareto frontier", .markers = false, .backdrop = true};
  double best = -1;
  for (const auto& [cost, recall] : all) {
    if (recall <= best) continue;
    if (best >= 0) stairs.points.emplace_back(cost, best);
    stairs.points.emplace_back(cost, best = recall);
  }
  stairs.points.emplace_back(all.back().first, best);
  return stairs;
}

Plot against(Plot plot, const std::vector<const PointResult*>& points, CostOf cost_of) {
  for (const PointResult* point : points) {
    if (plot.series.empty() || plot.series.back().label != point->series) plot.series.push_back({.label = point->series});
    PlotSeries& series = plot.series.back();
    const double cost = cost_of(*point);
    series.points.emplace_back(cost, point->score);
    if (point->label.find(' ') != std::string::npos) series.line = false;  // several axes: a line would zigzag
    if (point->best.size() > 1) series.bars.push_back({cost, point->low, point->high});
    if (!point->label.empty()) plot.notes.push_back({cost, point->score, point->label});
  }
  plot.labels_at_end = plot.series.size() > most_labels;
  plot.series.push_back(frontier(points, cost_of));
  return plot;
}

Plot against_state(const RecallSummary& summary, const std::vector<const PointResult*>& points) {
  Plot plot = frame(summary);
  plot.x = {"bytes of recurrent state", true, TickFormat::bytes, {}, {}};
  plot.footer = made_from(summary, true) + unfinished(points) + "; state measured";
  return against(std::move(plot), points, state_bytes_of);
}

Plot against_parameters(const RecallSummary& summary, const std::vector<const PointResult*>& points) {
  Plot plot = frame(summary);
  plot.title += ": by parameters";
  plot.x = {"parameters", true, TickFormat::number, {}, {}};
  plot.footer = made_from(summary, true) + unfinished(points);
  return against(std::move(plot), points, parameters_of);
}

// The points for the figures by epoch and by pairs, one per series, of about equal bytes of state. The best points of all would not do:
// their recall may be perfect throughout.
struct Curves {
  std::vector<const PointResult*> points;  // one per series
  std::string about;

  explicit Curves(const std::vector<const PointResult*>& finished) {
    const double most = common_bytes(finished);
    points = best_from(finished, most);
    about = "; of each series the best from " + format_bytes(most) + " of state, or its smallest";
  }
  static PlotSeries empty_series(const PointResult& point) { return {.label = point.series + ", " + format_bytes(state_bytes_of(point))}; }
};

Plot epochs_figure(const RecallSummary& summary, const Curves& curves) {
  Plot plot = frame(summary);
  plot.title += ": by epoch";
  plot.subtitle += curves.about;
  plot.labels_at_end = true;
  plot.x = {"epochs", false, TickFormat::number, {}, {}};
  for (const PointResult* point : curves.points) {
    plot.series.push_back(Curves::empty_series(*point));
    std::vector<std::vector<double>> seeds;
    for (const StoredRun* run : point->best) seeds.push_back(by_epoch(summary, *run));
    const std::vector<double> epochs = mean_of(seeds);
    for (size_t i = 0; i < epochs.size(); ++i) plot.series.back().points.emplace_back(static_cast<double>(i + 1), epochs[i]);
  }
  return plot;
}

Plot pairs_figure(const RecallSummary& summary, const Curves& curves) {
  Plot plot = frame(summary);
  plot.title += ": by number of pairs";
  plot.subtitle = "multi-query associative recall" + curves.about;
  plot.y.label = "recall";
  plot.labels_at_end = true;
  plot.x = {"key-value pairs an example", true, TickFormat::powers_of_two, {}, {}};
  for (const PointResult* point : curves.points) {
    plot.series.push_back(Curves::empty_series(*point));
    std::map<int64_t, std::pair<double, double>> pairs;  // sum and number of segments
    const std::vector<double> segments = mean_segments(*point);
    for (size_t i = 0; i < std::min(segments.size(), summary.task.test.size()); ++i) {
      auto& [sum, count] = pairs[summary.task.test[i].pairs];
      sum += segments[i], count += 1;
    }
    for (const auto& [number, mean] : pairs) plot.series.back().points.emplace_back(static_cast<double>(number), mean.first / mean.second);
  }
  return plot;
}

}  // namespace

int64_t paper_state_elements(const ModelConfig& model, int64_t tokens) {
  int64_t sum = 0;
  for (const std::string& layer : model.layers) {
    const auto named = model.mixers.find(layer);
    const std::string type = named == model.mixers.end() ? layer : std::get<std::string>(named->second.find("type")->value());
    const auto* found =
        std::find_if(paper_states.begin(), paper_states.end(), [&](const PaperState& state) { return state.mixer == type; });
    if (found == paper_states.end()) return -1;
    sum += found->elements(model, layer, tokens);
  }
  return sum;
}

std::vector<Figure> recall_figures(const RecallSummary& summary, const std::vector<PointResult>& points) {
  const std::vector<const PointResult*> done = finished(points);
  if (done.empty()) return {};
  const Curves curves(done);
  std::vector<Figure> figures{{"figure", against_state(summary, done)}};
  if (summary.against_parameters) figures.push_back({"parameters", against_parameters(summary, done)});
  if (summary.training.epochs > 1) figures.push_back({"epochs", epochs_figure(summary, curves)});
  if (summary.task.test.size() > 1) figures.push_back({"pairs", pairs_figure(summary, curves)});
  return figures;
}

std::string recall_table(const RecallSummary& summary, const std::vector<PointResult>& points) {
  std::string head = std::string("| series | point | ") + (summary.last_segment ? "score | " : "accuracy | "), rule = "|---|---|---:|";
  for (const RecallSegment& segment : summary.task.test) {
    head += labelled(segment) + " | ";
    rule += "---:|";
  }
  std::string text = "# " + markdown(summary.title) + "\n\n" + made_from(summary, true) +
                     ". State in bytes is measured; elements are the paper's count." +
                     (summary.last_segment ? " The score is the recall of " + labelled(summary.task.test.back()) + ".\n\n" : "\n\n");
  text += head + "learning rate | state bytes | paper's elements | parameters | seconds a run | runs |\n" + rule +
          "---:|---:|---:|---:|---:|---:|\n";
  for (const PointResult& point : points) {
    text += "| " + markdown(point.series) + " | " + markdown(point.label) + " | ";
    const std::string runs = std::to_string(point.done) + "/" + std::to_string(point.runs) +
                             (point.failed > 0 ? ", " + std::to_string(point.failed) + " failed" : "");
    if (point.best.empty()) {
      for (size_t i = 0; i < summary.task.test.size() + 6; ++i) text += "- | ";
      text += runs + " |\n";
      continue;
    }
    text += format_number(point.score, 4);
    if (point.best.size() > 1) text += " (" + format_number(point.low, 4) + " to " + format_number(point.high, 4) + ")";
    const std::vector<double> segments = mean_segments(point);
    for (size_t i = 0; i < summary.task.test.size(); ++i) text += " | " + (i < segments.size() ? format_number(segments[i], 4) : "-");
    double seconds = 0;
    for (const StoredRun* run : point.best) seconds += run->seconds / static_cast<double>(point.best.size());
    const int64_t elements = paper_state_elements(summary.models.at(point_key(point.series, point.label)), point.planned->length);
    text += " | " + format_number(point.learning_rate, 5) + " | " + format_number(state_bytes_of(point), 0) + " | " +
            (elements < 0 ? "-" : std::to_string(elements)) + " | " + std::to_string(point.planned->parameters) + " | " +
            format_number(seconds, 1) + " | " + runs + " |\n";
  }
  return text;
}

}  // namespace based
