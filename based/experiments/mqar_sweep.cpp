#include "based/experiments/mqar_sweep.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/random.h"
#include "based/models/weights.h"

namespace based {
namespace {

// Test data come from seeds far from the training data's, whatever the number of segments.
constexpr int64_t test_seed_offset = 1'000'000;

MqarConfig segment_config(const MqarTask& task, const MqarSegment& segment, int64_t index, bool test) {
  MqarConfig config;
  config.vocab_size = task.vocab_size;
  config.length = segment.length;
  config.pairs = segment.pairs;
  config.examples = segment.examples;
  config.power_a = task.power_a;
  config.random_fillers = task.random_fillers;
  config.seed = task.seed * 2 * test_seed_offset + index + (test ? test_seed_offset : 0);
  return config;
}

std::vector<MqarData> make_segments(const MqarTask& task, bool test) {
  std::vector<MqarData> data;
  const auto& segments = test ? task.test : task.train;
  for (size_t i = 0; i < segments.size(); ++i) data.push_back(make_mqar(segment_config(task, segments[i], static_cast<int64_t>(i), test)));
  return data;
}

Batch batch_of(const MqarData& data, int64_t first, int64_t count) {
  const auto rows = [&](const std::vector<int32_t>& values) {
    return torch::from_blob(const_cast<int32_t*>(values.data() + first * data.length), {count * data.length}, torch::kInt32)
        .to(torch::kInt64);
  };
  return {rows(data.inputs), rows(data.labels), Sequences::equal(count, data.length)};
}

// (segment, first example) of every batch of an epoch.
std::vector<std::pair<size_t, int64_t>> epoch_order(const std::vector<MqarData>& train, const MqarTraining& run, int64_t epoch) {
  std::vector<std::pair<size_t, int64_t>> order;
  for (size_t segment = 0; segment < train.size(); ++segment)
    for (int64_t first = 0; first + run.batch <= train[segment].examples; first += run.batch) order.emplace_back(segment, first);
  if (run.shuffle) {
    Random random(static_cast<uint64_t>(run.seed), static_cast<uint64_t>(epoch));
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  }
  return order;
}

void expand_lists(const Config& table, const std::string& path, const std::string& label,
                  std::vector<std::pair<Config, std::string>>& found) {
  // The first list (other than `layers`) becomes one table an element, each expanded further.
  const auto visit = [&](const auto& self, const Config& at, const std::string& prefix) -> bool {
    for (const auto& [key, value] : std::get<Config::Table>(at.value())) {
      const std::string here = prefix.empty() ? key : prefix + "." + key;
      if (value.is_table() && self(self, value, here)) return true;
      if (!value.is_array() || key == "layers") continue;
      for (const Config& element : std::get<Config::Array>(value.value())) {
        Config one = table;
        one.set(here, element);
        std::string text = element.to_json(-1);
        expand_lists(one, path, label + (label.empty() ? "" : " ") + key + "=" + text, found);
      }
      return true;
    }
    return false;
  };
  if (!visit(visit, table, "")) found.emplace_back(table, label);
}

Config laid_over(Config base, const Config& top) {
  if (!base.is_table()) return top;
  for (const auto& [key, value] : std::get<Config::Table>(top.value())) {
    const Config* below = base.find(key);
    base.set(key, below && below->is_table() && value.is_table() ? laid_over(*below, value) : value);
  }
  return base;
}

std::string key_of(const MqarSweep& sweep, const MqarPoint& point) {
  std::string text = write_config(point.model).to_json() + write_config(sweep.task).to_json() + write_config(sweep.optimizer).to_json();
  MqarTraining run = sweep.run;
  run.learning_rates = {point.learning_rate};
  text += write_config(run).to_json();
  return xxh3_128(std::as_bytes(std::span(text))).hex();
}

std::vector<MqarResult> read_results(const std::string& path) {
  std::vector<MqarResult> results;
  if (!std::filesystem::exists(path)) return results;
  std::ifstream in(path);
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) {
      log_warning(path + ": the last line is cut off (an earlier run was killed while writing it); it is done again");
      break;
    }
    results.push_back(read_config<MqarResult>(Config::parse_json(line, path + ":" + std::to_string(number))));
  }
  return results;
}

void write_results(const std::string& path, const std::vector<MqarResult>& results) {
  std::string text;
  for (const auto& result : results) text += write_config(result).to_json(-1) + "\n";
  write_file_atomic(path, text);
}

struct Data {
  std::vector<MqarData> train, test;
  std::string hash;
};

Data make_data(const MqarTask& task) {
  Data data{make_segments(task, false), make_segments(task, true), ""};
  Hasher128 hasher;
  for (const auto* part : {&data.train, &data.test})
    for (const auto& segment : *part) {
      const uint64_t hash = segment.hash();
      hasher.update(std::as_bytes(std::span(&hash, 1)));
    }
  data.hash = hasher.digest().hex();
  return data;
}

std::string point_name(const MqarPoint& point) { return point.name + (point.label.empty() ? "" : " " + point.label); }

// False: interrupted, nothing to keep.
bool run_point(const MqarSweep& sweep, const MqarPoint& point, const Data& data, const std::string& folder, MqarResult& result) {
  torch::manual_seed(static_cast<uint64_t>(sweep.run.seed));
  LanguageModel model(point.model);
  OptimizerOptions optimizer_options = sweep.optimizer;
  optimizer_options.learning_rate = point.learning_rate;
  optimizer_options.min_learning_rate = std::min(optimizer_options.min_learning_rate, point.learning_rate);
  AdamW optimizer(model, optimizer_options);
  std::vector<std::pair<size_t, int64_t>> order;
  int64_t epoch = -1;
  LoopOptions options;
  const int64_t epoch_steps = static_cast<int64_t>(epoch_order(data.train, sweep.run, 0).size());
  options.steps = epoch_steps * sweep.run.epochs;
  options.label = point_name(point);
  LoopHooks hooks;
  hooks.batch = [&](int64_t step) {
    if (step / epoch_steps != epoch) order = epoch_order(data.train, sweep.run, epoch = step / epoch_steps);
    const auto [segment, first] = order[static_cast<size_t>(step % epoch_steps)];
    return batch_of(data.train[segment], first, sweep.run.batch);
  };
  const LoopResult loop = train_loop(model, optimizer, optimizer_options, options, hooks);
  if (loop.interrupted) return false;
  save_model(model, folder);
  const MqarRecall recall = measure_recall(model, data.test, sweep.run.batch);
  int64_t longest = 0;
  for (const auto& segment : data.test) longest = std::max(longest, segment.length);
  result.state_bytes = state_bytes(model, longest);
  result.parameters = model.parameter_count();
  result.recall = recall.mean;
  result.segments = recall.segments;
  result.loss = loop.state.loss;
  result.seconds = loop.seconds;
  result.data_hash = data.hash;
  return true;
}

}  // namespace

MqarRecall measure_recall(LanguageModel& model, const std::vector<MqarData>& test, int64_t batch) {
  const torch::NoGradGuard no_grad;
  model.eval();
  MqarRecall recall;
  double examples = 0;
  for (const auto& segment : test) {
    int64_t hits = 0, labels = 0;
    for (int64_t first = 0; first < segment.examples; first += batch) {
      const Batch rows = batch_of(segment, first, std::min(batch, segment.examples - first));
      const Tensor at = (rows.labels != kNoLabel).nonzero().squeeze(1);
      const Tensor hidden = model.forward(rows.ids, rows.rows).index_select(0, at);
      hits += (model.logits(hidden).argmax(1) == rows.labels.index_select(0, at)).sum().item<int64_t>();
      labels += at.size(0);
    }
    recall.segments.push_back(static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(labels, 1)));
    recall.mean += recall.segments.back() * static_cast<double>(segment.examples);
    examples += static_cast<double>(segment.examples);
  }
  recall.mean /= std::max(examples, 1.0);
  return recall;
}

std::vector<MqarPoint> expand_sweep(const MqarSweep& sweep) {
  const auto require = [](bool right, const char* what) {
    if (!right) throw UsageError(what);
  };
  check_optimizer_options(sweep.optimizer);
  require(!sweep.models.empty(), "a sweep needs at least one [[models]]");
  require(!sweep.task.train.empty() && !sweep.task.test.empty(), "task.train and task.test each need at least one segment");
  require(sweep.run.epochs >= 1 && sweep.run.batch >= 1, "run.epochs and run.batch must be at least 1");
  require(!sweep.run.learning_rates.empty(), "run.learning_rates must not be empty");
  for (const bool test : {false, true})
    for (const auto& segment : test ? sweep.task.test : sweep.task.train) check_mqar(segment_config(sweep.task, segment, 0, test));
  for (const auto& segment : sweep.task.train)
    require(segment.examples >= sweep.run.batch, "every training segment needs run.batch examples");
  std::vector<MqarPoint> points;
  for (const auto& entry : sweep.models) {
    require(!entry.name.empty(), "every [[models]] needs a name");
    Config keys = laid_over(sweep.model.is_null() ? Config(Config::Table{}) : sweep.model, entry.model);
    keys.set("vocab_size", Config(sweep.task.vocab_size));
    std::vector<std::pair<Config, std::string>> tables;
    expand_lists(keys, "", "", tables);
    for (const auto& [table, label] : tables)
      for (const double rate : sweep.run.learning_rates) points.push_back({entry.name, label, read_model_config(table), rate});
  }
  return points;
}

std::vector<MqarResult> run_sweep(const MqarSweep& sweep, const std::string& out) {
  const std::vector<MqarPoint> points = expand_sweep(sweep);
  std::filesystem::create_directories(out);
  const std::string path = (std::filesystem::path(out) / "results.jsonl").string();
  std::vector<MqarResult> known = read_results(path), results;
  const InterruptScope interrupts;
  Data data;
  for (size_t i = 0; i < points.size() && !interrupted(); ++i) {
    const MqarPoint& point = points[i];
    MqarResult result;
    result.key = key_of(sweep, point);
    const auto done = std::find_if(known.begin(), known.end(), [&](const MqarResult& one) { return one.key == result.key; });
    if (done != known.end()) {
      results.push_back(*done);
      continue;
    }
    if (data.train.empty()) data = make_data(sweep.task);
    result.name = point.name;
    result.label = point.label;
    result.learning_rate = point.learning_rate;
    result.model = (std::filesystem::path("models") / result.key.substr(0, 12)).string();
    if (!run_point(sweep, point, data, (std::filesystem::path(out) / result.model).string(), result)) break;
    log_info(std::to_string(i + 1) + "/" + std::to_string(points.size()) + " " + point_name(point) + ": recall " +
             std::to_string(result.recall).substr(0, 5) + ", state " + std::to_string(result.state_bytes) + " bytes");
    known.push_back(result);
    results.push_back(result);
    write_results(path, known);
  }
  if (!results.empty()) write_plot(recall_figure(sweep, results), (std::filesystem::path(out) / "figure").string());
  return results;
}

Plot recall_figure(const MqarSweep& sweep, const std::vector<MqarResult>& results) {
  Plot plot;
  plot.title = sweep.title;
  const auto& last = sweep.task.test.back();
  plot.subtitle =
      "multi-query associative recall, up to " + std::to_string(last.pairs) + " pairs in " + std::to_string(last.length) + " tokens";
  plot.x = {"bytes of recurrent state", true, TickFormat::bytes, {}, {}};
  plot.y = {"recall", false, TickFormat::percent, 0.0, 1.0};
  int64_t examples = 0;
  for (const auto& segment : sweep.task.train) examples += segment.examples;
  plot.footer = "vocabulary " + std::to_string(sweep.task.vocab_size) + ", " + std::to_string(examples) + " training examples" +
                (sweep.run.epochs == 1 ? "" : " x " + std::to_string(sweep.run.epochs) + " epochs") + "; state measured, not computed";
  for (const auto& entry : sweep.models) {
    std::map<std::string, MqarResult> best;  // over the learning rates
    for (const auto& result : results)
      if (result.name == entry.name) {
        const auto [at, is_new] = best.try_emplace(result.label, result);
        if (!is_new && result.recall > at->second.recall) at->second = result;
      }
    PlotSeries series;
    series.label = entry.name;
    for (const auto& [label, result] : best) series.points.emplace_back(static_cast<double>(result.state_bytes), result.recall);
    if (!series.points.empty()) plot.series.push_back(series);
  }
  return plot;
}

}  // namespace based
