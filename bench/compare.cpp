#include "bench/compare.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include "based/core/text.h"
#include "based/generate/engine.h"
#include "bench/model.h"

namespace based::bench {
namespace {

struct Size {
  int64_t batch, context;  // number of sequences; tokens per sequence
};

// First increasing numbers of sequences of one length, then increasing lengths for one number of sequences.
std::vector<Size> sizes(const Context& context) {
  const bool gpu = context.device.is_cuda();
  std::vector<int64_t> batches{1, 2, 4, 8, 16}, contexts{128, 512, 2048, 8192};
  Size fixed{4, 512};
  if (gpu) batches = {1, 4, 16, 64, 128, 256, 512}, contexts = {128, 512, 2048, 8192, 32768}, fixed = {16, 2048};
  if (context.quick) batches = {1, 4, 16}, contexts = {64, 256, 1024}, fixed = {4, 64};
  std::vector<Size> all;
  all.reserve(batches.size() + contexts.size());
  for (const int64_t batch : batches) all.push_back({batch, fixed.context});
  for (const int64_t length : contexts)
    if (length != fixed.context || std::find(batches.begin(), batches.end(), fixed.batch) == batches.end())
      all.push_back({fixed.batch, length});
  return all;
}

Result measure(Context& context, const BenchModel& bench, const std::string& preset, const Size& size) {
  const int64_t steps = context.device.is_cuda() ? kTimedSteps : 4, repeats = context.quick ? 3 : 7;
  const double rows = static_cast<double>(size.batch), weights = weight_bytes(*bench.model);
  Result result;
  result.name = "decode " + preset;
  result.shape = bench.name + " B=" + std::to_string(size.batch) + " N=" + std::to_string(size.context);
  result.unit = "tokens/s";
  result.error = bench.error;
  result.more = {{"batch", rows}, {"context", static_cast<double>(size.context)}, {"weight_bytes", weights}, {"fits", 1}};
  try {
    const std::unique_ptr<Engine> engine = filled_engine(*bench.model, size.batch, size.context, steps * (repeats + 1));
    const FloorTime floor = decode_floor(context, *engine, size.batch, size.context);
    result.floor = rows / floor.seconds;
    result.bound = floor.bound;
    const double seconds = median_seconds(
                               [&] {
                                 for (int64_t i = 0; i < steps; ++i) engine->step();
                               },
                               static_cast<int>(repeats)) /
                           static_cast<double>(steps);
    result.value = rows / seconds;
    result.floor_fraction = result.value / result.floor;
    result.more["ms"] = seconds * 1e3;
    result.more["state_bytes"] = static_cast<double>(engine->state_bytes());
  } catch (const c10::OutOfMemoryError&) {
    result.more["fits"] = 0;
  }
  return result;
}

std::string cell(const std::string& text) { return padded_left(" " + text, 13); }

// One series per model, over the results with the most frequent value of `fixed`.
Plot figure(const std::vector<Result>& results, const std::string& over, const std::string& fixed, const std::string& footer) {
  std::map<double, std::set<double>> values;  // values of `over`, for each value of `fixed`
  for (const Result& result : results) values[result.more.at(fixed)].insert(result.more.at(over));
  const auto most =
      std::max_element(values.begin(), values.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  Plot plot;
  plot.footer = footer;
  plot.y = {"tokens per second", true, TickFormat::number, {}, {}};
  const std::string at = format_number(most == values.end() ? 0 : most->first, 0);
  plot.subtitle = fixed == "batch" ? at + " sequences at once" : "each sequence " + at + " tokens long";
  for (const Result& result : results) {
    if (result.more.at(fixed) != most->first || result.more.at("fits") == 0) continue;
    const std::string label = result.name.substr(result.name.find(' ') + 1);
    auto found = std::find_if(plot.series.begin(), plot.series.end(), [&](const PlotSeries& series) { return series.label == label; });
    if (found == plot.series.end()) found = plot.series.insert(found, {label, {}, true, true, plot.series.empty()});
    found->points.emplace_back(result.more.at(over), result.value);
  }
  for (PlotSeries& series : plot.series) std::sort(series.points.begin(), series.points.end());
  return plot;
}

}  // namespace

void compare_decode(Context& context) {
  const torch::InferenceMode inference;
  context.ceilings.measure();
  std::vector<BenchModel> models;
  for (const std::string& preset : context.presets) models.push_back(verified_preset(context, preset));
  for (const Size& size : sizes(context))
    for (size_t i = 0; i < models.size(); ++i) context.add(measure(context, models[i], context.presets[i], size));
}

std::vector<std::string> comparison_heads(const std::vector<std::string>& models) {
  std::string names(16, ' '), columns = cell("texts").substr(5) + cell("tokens").substr(5);
  for (const std::string& model : models) {
    names += "   " + padded(model, 36);
    columns += cell("tokens/s") + cell("ms/step") + cell("state MB");
  }
  return {names, columns};
}

std::string comparison_line(const std::vector<Result>& models) {
  std::string line;
  for (const Result& result : models) {
    if (line.empty())
      line = cell(format_number(result.more.at("batch"), 0)).substr(5) + cell(format_number(result.more.at("context"), 0)).substr(5);
    if (result.more.at("fits") == 0) {
      line += cell("does not fit") + cell("") + cell("");
      continue;
    }
    line += cell(format_number(result.value, result.value < 100 ? 1 : 0)) + cell(format_number(result.more.at("ms"), 3)) +
            cell(format_number(result.more.at("state_bytes") / 1e6, result.more.at("state_bytes") < 1e7 ? 3 : 1));
  }
  return line;
}

Plot batch_figure(const std::vector<Result>& results, const std::string& footer) {
  Plot plot = figure(results, "batch", "context", footer);
  plot.title = "Generation throughput against the number of sequences";
  plot.x = {"sequences at once", true, TickFormat::powers_of_two, {}, {}};
  return plot;
}

Plot context_figure(const std::vector<Result>& results, const std::string& footer) {
  Plot plot = figure(results, "context", "batch", footer);
  plot.title = "Generation throughput against the length of the sequence";
  plot.x = {"tokens in the sequence", true, TickFormat::powers_of_two, {}, {}};
  return plot;
}

}  // namespace based::bench
