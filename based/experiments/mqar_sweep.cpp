#include "based/experiments/mqar_sweep.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "based/core/files.h"
#include "based/core/folder_lock.h"
#include "based/core/hash.h"
#include "based/core/interrupt.h"
#include "based/core/log.h"
#include "based/core/random.h"
#include "based/core/text.h"
#include "based/experiments/results_version.h"
#include "based/generate/engine.h"
#include "based/models/weights.h"

namespace based {
namespace {

// Test data come from seeds far from the training data's, whatever the number of segments.
constexpr int64_t test_seed_offset = 1'000'000;
constexpr size_t max_points = 10'000;

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

}  // namespace

std::vector<MqarData> make_segments(const MqarTask& task, bool test) {
  std::vector<MqarData> data;
  const auto& segments = test ? task.test : task.train;
  for (size_t i = 0; i < segments.size(); ++i) data.push_back(make_mqar(segment_config(task, segments[i], static_cast<int64_t>(i), test)));
  return data;
}

namespace {

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
      if (std::get<Config::Array>(value.value()).empty()) {
        throw UsageError(value.where() + "model." + here + " is an empty list: nothing would be trained; name at least one value");
      }
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
  if (visit(visit, table, "")) return;
  if (found.size() == max_points) throw UsageError("the lists in [[models]] make more than " + std::to_string(max_points) + " models");
  found.emplace_back(table, label);
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
  if (!path_exists(path)) return results;
  std::ifstream in(path);
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) {
      log_warning(path + ": the last line is cut off (an earlier run was killed while writing it); it is done again");
      break;
    }
    results.push_back(read_stored([&] { return read_config<MqarResult>(Config::parse_json(line, path + ":" + std::to_string(number))); }));
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

// What results.jsonl says about one sweep.
struct Known {
  std::vector<MqarResult> all;        // as the file has them
  std::map<std::string, size_t> own;  // a point's key -> its result of this code, in `all`
};

// Names the sweep's results that other code has made; they are not used. `fresh`: own ones are taken out.
Known look_up(std::vector<MqarResult> all, const std::set<std::string>& keys, const std::string& path, bool fresh) {
  Known known;
  std::map<std::string, std::string> other;  // a version -> its runs
  for (MqarResult& result : all) {
    const bool wanted = keys.contains(result.key), own = wanted && result.code == results_version;
    if (own && fresh) continue;
    if (own) known.own.emplace(result.key, known.all.size());
    if (wanted && !own) {
      std::string& names = other[result.code.empty() ? "code before versions" : "code " + result.code];
      names += (names.empty() ? "" : ", ") + result.name + (result.label.empty() ? "" : " " + result.label);
    }
    known.all.push_back(std::move(result));
  }
  for (const auto& [version, names] : other)
    log_warning(path + ": has results of " + version + ", which are not used (this is code " + results_version + "): " + names);
  return known;
}

std::string point_name(const MqarPoint& point) { return point.name + (point.label.empty() ? "" : " " + point.label); }

OptimizerOptions optimizer_of(const MqarSweep& sweep, double rate) {
  OptimizerOptions options = sweep.optimizer;
  options.learning_rate = rate;
  options.min_learning_rate = std::min(options.min_learning_rate, rate);
  return options;
}

int64_t epoch_steps_of(const MqarSweep& sweep) {
  int64_t steps = 0;
  for (const auto& segment : sweep.task.train) steps += segment.examples / sweep.run.batch;
  return steps;
}

void check_sweep(const MqarSweep& sweep) {
  const auto require = [](bool right, const char* what) {
    if (!right) throw UsageError(what);
  };
  require(!sweep.models.empty(), "a sweep needs at least one [[models]]");
  require(!sweep.task.train.empty() && !sweep.task.test.empty(), "task.train and task.test each need at least one segment");
  require(sweep.run.epochs >= 1 && sweep.run.batch >= 1, "run.epochs and run.batch must be at least 1");
  require(!sweep.run.learning_rates.empty(), "run.learning_rates must not be empty");
  for (const double rate : sweep.run.learning_rates) check_optimizer_options(optimizer_of(sweep, rate));
  for (const bool test : {false, true})
    for (const auto& segment : test ? sweep.task.test : sweep.task.train) check_mqar(segment_config(sweep.task, segment, 0, test));
  for (const auto& segment : sweep.task.train)
    require(segment.examples >= sweep.run.batch, "every training segment needs run.batch examples");
  for (const auto& segment : sweep.task.test) require(segment.examples >= 1, "every test segment needs examples");
  require(sweep.run.epochs <= INT32_MAX / epoch_steps_of(sweep), "run.epochs times the batches of an epoch must be below 2^31 steps");
}

void check_positions(const ModelConfig& model, int64_t length) {
  if (model.max_positions == 0 || length <= model.max_positions) return;
  throw UsageError("examples of " + std::to_string(length) + " tokens are more than model.max_positions = " +
                   std::to_string(model.max_positions) + ", the positions that the model learns");
}

// False: interrupted, nothing to keep.
bool run_point(const MqarSweep& sweep, const MqarPoint& point, const Data& data, const std::string& folder, MqarResult& result) {
  torch::manual_seed(static_cast<uint64_t>(sweep.run.seed));
  LanguageModel model(point.model);
  const OptimizerOptions optimizer_options = optimizer_of(sweep, point.learning_rate);
  AdamW optimizer(model, optimizer_options);
  std::vector<std::pair<size_t, int64_t>> order;
  int64_t epoch = -1;
  LoopOptions options;
  const int64_t epoch_steps = epoch_steps_of(sweep);
  options.steps = epoch_steps * sweep.run.epochs;
  options.label = point_name(point);
  LoopHooks hooks;
  hooks.batch = [&](int64_t step) {
    if (step / epoch_steps != epoch) order = epoch_order(data.train, sweep.run, epoch = step / epoch_steps);
    const auto [segment, first] = order[static_cast<size_t>(step % epoch_steps)];
    return batch_of(data.train[segment], first, sweep.run.batch);
  };
  LoopResult loop;
  try {
    loop = train_loop(model, optimizer, optimizer_options, options, hooks);
  } catch (const Diverged& diverged) {
    throw Error(point_name(point) + ", learning rate " + format_number(point.learning_rate, 6) + ": " + diverged.what());
  }
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
  model.eval();
  MqarRecall recall;
  double examples = 0;
  for (const auto& segment : test) check_positions(model.config(), segment.length);
  for (const auto& segment : test) {
    Engine engine(model, {.slots = batch, .prefill_tokens = batch * segment.length, .decode = {.steps = Steps::plain}});
    int64_t hits = 0, labels = 0, next = 0;
    std::map<int64_t, int64_t> examples_of;  // of the engine's sequences
    while (next < segment.examples || !engine.idle()) {
      for (; next < segment.examples && static_cast<int64_t>(examples_of.size()) < batch; ++next) {
        const auto first = segment.inputs.begin() + next * segment.length;
        std::vector<int64_t> text(first, first + segment.length);
        text.push_back(0);  // an engine reads all tokens but the last
        examples_of[engine.add(std::move(text), {.max_tokens = 0, .predictions = true})] = next;
      }
      for (const Engine::Drawn& ended : engine.step()) {
        const int32_t* label = segment.labels.data() + examples_of.at(ended.sequence) * segment.length;
        const std::vector<int64_t>& predictions = engine.predictions(ended.sequence);
        for (int64_t t = 0; t < segment.length; ++t) {
          if (label[t] == kNoLabel) continue;
          const int64_t said = predictions[static_cast<size_t>(t)];
          if (said < 0) throw Error("the recall cannot be measured: what the model says is not finite");
          ++labels, hits += said == label[t];
        }
        engine.remove(ended.sequence);
        examples_of.erase(ended.sequence);
      }
    }
    recall.segments.push_back(static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(labels, 1)));
    recall.mean += recall.segments.back() * static_cast<double>(segment.examples);
    examples += static_cast<double>(segment.examples);
  }
  recall.mean /= std::max(examples, 1.0);
  return recall;
}

std::vector<MqarPoint> expand_sweep(const MqarSweep& sweep) {
  check_sweep(sweep);
  std::vector<MqarPoint> points;
  for (const auto& entry : sweep.models) {
    if (entry.name.empty()) throw UsageError("every [[models]] needs a name");
    Config keys = laid_over(model_table(sweep.model), model_table(entry.model));
    keys.set("vocab_size", Config(sweep.task.vocab_size));
    std::vector<std::pair<Config, std::string>> tables;
    expand_lists(keys, "", "", tables);
    for (const auto& [table, label] : tables) {
      const ModelConfig model = read_model_config(table);
      for (const auto* segments : {&sweep.task.train, &sweep.task.test})
        for (const auto& segment : *segments) check_positions(model, segment.length);
      for (const double rate : sweep.run.learning_rates) points.push_back({entry.name, label, model, rate});
    }
  }
  return points;
}

SweepOutcome run_sweep(const MqarSweep& sweep, const std::string& out, bool fresh) {
  const std::vector<MqarPoint> points = expand_sweep(sweep);
  const FolderLock lock(out);
  const std::string path = (std::filesystem::path(out) / "results.jsonl").string();
  std::set<std::string> keys;
  for (const MqarPoint& point : points) keys.insert(key_of(sweep, point));
  Known known = look_up(read_results(path), keys, path, fresh);
  if (fresh) write_results(path, known.all);
  SweepOutcome outcome;
  outcome.points = static_cast<int64_t>(points.size());
  const InterruptScope interrupts;
  Data data;
  for (size_t i = 0; i < points.size() && !interrupted(); ++i) {
    const MqarPoint& point = points[i];
    MqarResult result;
    result.key = key_of(sweep, point);
    if (const auto own = known.own.find(result.key); own != known.own.end()) {
      outcome.results.push_back(known.all[own->second]);
      ++outcome.reused;
      continue;
    }
    if (data.train.empty()) data = make_data(sweep.task);
    result.code = results_version;
    result.name = point.name;
    result.label = point.label;
    result.learning_rate = point.learning_rate;
    result.model = (std::filesystem::path("models") / (result.key.substr(0, 12) + "-" + result.code.substr(0, 8))).string();
    if (!run_point(sweep, point, data, (std::filesystem::path(out) / result.model).string(), result)) break;
    log_info(std::to_string(i + 1) + "/" + std::to_string(points.size()) + " " + point_name(point) + ": recall " +
             std::to_string(result.recall).substr(0, 5) + ", state " + std::to_string(result.state_bytes) + " bytes");
    known.own.emplace(result.key, known.all.size());
    known.all.push_back(result);
    outcome.results.push_back(result);
    write_results(path, known.all);
  }
  if (!outcome.results.empty()) write_plot(recall_figure(sweep, outcome.results), (std::filesystem::path(out) / "figure").string());
  return outcome;
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
