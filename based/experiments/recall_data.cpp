#include "based/core/hash.h"
#include "based/experiments/recall_run.h"

namespace based {
namespace {

// Distance between the seeds of test and training data. It is more than the number of segments, so that their streams never coincide.
constexpr int64_t test_seed_offset = 1'000'000;

MqarConfig segment_config(const RecallTask& task, const RecallSegment& segment) {
  MqarConfig config;
  config.vocab_size = task.vocab_size;
  config.length = segment.length;
  config.pairs = segment.pairs;
  config.examples = segment.examples;
  config.power_a = task.power_a;
  config.random_fillers = task.random_fillers;
  config.compat = task.compat;
  config.filler_seed = task.filler_seed;
  return config;
}

std::vector<MqarData> make_own(const RecallTask& task, bool test) {
  std::vector<MqarData> data;
  for (const RecallSegment& segment : test ? task.test : task.train) {
    MqarConfig config = segment_config(task, segment);
    config.seed = task.seed * 2 * test_seed_offset + static_cast<int64_t>(data.size()) + (test ? test_seed_offset : 0);
    data.push_back(make_mqar(config));
  }
  return data;
}

MqarSegments make_zoology(const RecallTask& task) {
  const auto configs = [&task](const std::vector<RecallSegment>& segments) {
    std::vector<MqarConfig> all;
    all.reserve(segments.size());
    for (const RecallSegment& segment : segments) all.push_back(segment_config(task, segment));
    return all;
  };
  return make_zoology_segments(configs(task.train), configs(task.test), task.seed, task.filler_seed < 0 ? task.seed : task.filler_seed);
}

}  // namespace

void check_recall_task(const RecallTask& task) {
  constexpr int64_t most_seed = 1'000'000'000'000;
  if (task.seed < 0 || task.seed > most_seed) throw UsageError("task.seed must be from 0 to 10^12, got " + std::to_string(task.seed));
  for (const bool test : {false, true}) {
    const auto& segments = test ? task.test : task.train;
    for (size_t i = 0; i < segments.size(); ++i) {
      try {
        check_mqar(segment_config(task, segments[i]));
      } catch (const UsageError& error) {
        throw UsageError(std::string(test ? "task.test[" : "task.train[") + std::to_string(i) + "]: " + error.what());
      }
    }
  }
  if (task.compat == "zoology" && task.power_a <= 0) throw UsageError("task.power_a must be above 0 with task.compat = \"zoology\"");
  if (task.compat == "zoology") zoology_segment_seeds(task.seed, 0, 0);
}

MqarSegments make_recall_segments(const RecallTask& task) {
  check_recall_task(task);
  if (task.compat == "zoology") return make_zoology(task);
  return {make_own(task, false), make_own(task, true)};
}

RecallData::Segment RecallData::on_device(const MqarData& data, torch::Device device) {
  Segment segment{data.length, data.examples, 0, {}, {}};
  const auto tensor = [&](const std::vector<int32_t>& values) {
    return torch::from_blob(const_cast<int32_t*>(values.data()), {data.examples, data.length}, torch::kInt32).to(torch::kInt64).to(device);
  };
  for (int64_t t = 0; data.examples > 0 && t < data.length; ++t) segment.labels += data.labels[static_cast<size_t>(t)] != kNoLabel;
  segment.inputs = tensor(data.inputs);
  segment.targets = tensor(data.labels);
  return segment;
}

RecallData::RecallData(const MqarSegments& segments, torch::Device device) : device_(device) {
  Hasher128 hasher;
  for (const bool test : {false, true})
    for (const MqarData& data : test ? segments.test : segments.train) {
      const uint64_t hash = data.hash();
      hasher.update(std::as_bytes(std::span(&hash, 1)));
      if (test) test_hashes_.push_back(hex(hash));
      (test ? test_ : train_).push_back(on_device(data, device));
    }
  hash_ = hasher.digest().hex();
}

}  // namespace based
