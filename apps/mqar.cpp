#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/hash.h"
#include "based/core/json.h"
#include "based/experiments/recall_eval.h"
#include "based/models/weights.h"

namespace based::apps {
namespace mqar_command {

struct GenerateOptions {
  MqarConfig config;
  std::string dump;
  bool json = false;
};

void generate(const GenerateOptions& options) {
  check_mqar(options.config);
  const MqarData data = make_mqar(options.config);
  if (!options.dump.empty()) {
    std::string lines;
    for (int64_t i = 0; i < data.examples; ++i) {
      const auto row = [&](const std::vector<int32_t>& values) {
        return std::vector<int32_t>(values.begin() + i * data.length, values.begin() + (i + 1) * data.length);
      };
      lines += dump_json({{"inputs", row(data.inputs)}, {"labels", row(data.labels)}}) + "\n";
    }
    write_file_atomic(options.dump, lines);
  }
  print_line(options.json ? dump_json({{"examples", data.examples}, {"length", data.length}, {"data_hash", hex(data.hash())}})
                          : grouped(data.examples) + " examples of " + grouped(data.length) + " tokens, data hash " + hex(data.hash()) +
                                (options.dump.empty() ? "" : ", written to " + options.dump));
}

void setup_generate(CommandLine app) {
  auto options = std::make_shared<GenerateOptions>();
  MqarConfig& config = options->config;
  app.add_option("--vocab-size", config.vocab_size, "vocabulary size: token 0 is the filler, then come keys; the upper half are values");
  app.add_option("--length", config.length, "tokens per example");
  app.add_option("--pairs", config.pairs, "key-value pairs per example");
  app.add_option("--examples", config.examples, "number of examples", {1});
  app.add_option("--power-a", config.power_a, "exponent of the power law of the gaps");
  app.add_option("--seed", config.seed, "seed of the data");
  app.add_option("--random-fillers", config.random_fillers, "true or false: fill the gaps with random tokens");
  app.add_option("--fillers-avoid-keys", config.fillers_avoid_keys, "true or false: no random filler is a key of its example");
  app.add_option("--compat", config.compat, "none, or zoology: the published generator, bit for bit");
  app.add_option("--filler-seed", config.filler_seed, "zoology only: seed of the fillers' separate generator; -1: the same as --seed");
  app.add_option("--dump", options->dump, "write JSON lines {inputs, labels} to this file", kPath);
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--compat", {"none", "zoology"});
  app.callback([options] { generate(*options); });
}

struct EvalOptions {
  std::string model;
  RecallTask task;
  RecallSegment segment;
  bool json = false;
};

// Uses test data, whose random streams differ from those of all training data, for any seed.
void evaluate(EvalOptions options) {
  const LoadedModel loaded = load_model(options.model);
  options.task.vocab_size = loaded.model->config().vocab_size;
  options.task.test = {options.segment};
  const MqarData data = make_recall_segments(options.task).test.front();
  const Recall recall = measure_recall(*loaded.model, {RecallData::on_device(data, torch::kCPU)}, 32);
  const int64_t bytes = state_bytes(*loaded.model, data.length);
  print_line(options.json ? dump_json({{"recall", recall.mean}, {"state_bytes", bytes}, {"data_hash", hex(data.hash())}})
                          : "recall " + format_number(recall.mean, 4) + " with " + grouped(bytes) + " bytes of state");
}

void setup_eval(CommandLine app) {
  auto options = std::make_shared<EvalOptions>();
  app.add_required("--model", options->model, "the model's folder");
  app.add_option("--length", options->segment.length, "tokens per example");
  app.add_option("--pairs", options->segment.pairs, "key-value pairs per example");
  app.add_option("--examples", options->segment.examples, "number of examples", {1});
  app.add_option("--power-a", options->task.power_a, "exponent of the power law of the gaps");
  app.add_option("--random-fillers", options->task.random_fillers, "true or false: fill the gaps with random tokens");
  app.add_option("--seed", options->task.seed, "seed of the data; an experiment's task.seed gives its first test segment",
                 {0, 1'000'000'000'000});
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { evaluate(*options); });
}

void setup(CommandLine app) {
  setup_generate(app.add_subcommand("generate", "Generate recall data"));
  setup_eval(app.add_subcommand("eval", "Measure the recall of a trained model"));
}

}  // namespace mqar_command

const Command command_mqar{"mqar", "Multi-query associative recall: data, evaluation", mqar_command::setup};

}  // namespace based::apps
