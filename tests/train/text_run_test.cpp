#include "based/train/text_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <fstream>

#include "based/core/files.h"
#include "based/core/json.h"
#include "based/core/manifest.h"
#include "based/core/safetensors.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/weights.h"
#include "based/train/checkpoints.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"
#include "tests/train/results.h"
#include "tests/train/small_run.h"

namespace based {
namespace text_run_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TextRun, LearnsAndLeavesAModelThatLoads) {
  const TemporaryFolder folder;
  const TextRunResult result = run_text_training(small_run(folder), folder.file("out"));
  EXPECT_EQ(result.loop.state.step, 30);
  EXPECT_EQ(result.loop.state.tokens, 30 * 4 * 32);
  EXPECT_FALSE(result.loop.interrupted);
  EXPECT_LT(result.loop.state.evaluation.at("loss"), 4.0);  // log(257) = 5.5 at the start
  const LoadedModel loaded = load_model(folder.file("out")), checkpoint = load_model(folder.file("out/checkpoints/latest"));
  for (const auto& item : result.model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), loaded.model->named_parameters()[item.key()]));
    EXPECT_TRUE(torch::equal(item.value(), checkpoint.model->named_parameters()[item.key()]));
  }
  EXPECT_EQ(make_tokenizer(folder.file("out"))->vocab_size(), 257);
  std::ifstream metrics(folder.file("out/metrics.jsonl"));
  std::string line;
  int64_t lines = 0;
  while (std::getline(metrics, line)) {
    EXPECT_TRUE(parse_json(line, "metrics").contains("step"));
    ++lines;
  }
  EXPECT_EQ(lines, 6);  // 3 logged steps, 3 evaluations
}

TEST(TextRun, TheSameSeedGivesTheSameWeights) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 5;
  const auto one = run_text_training(run, folder.file("a")).model, two = run_text_training(run, folder.file("b")).model;
  run.train.seed = 1;
  const auto other = run_text_training(run, folder.file("c")).model;
  bool differs = false;
  for (const auto& item : one->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), two->named_parameters()[item.key()])) << item.key();
    differs = differs || !torch::equal(item.value(), other->named_parameters()[item.key()]);
  }
  EXPECT_TRUE(differs);
}

// With a rate of almost nothing the weights stay as they were at the start.
TEST(TextRun, StartsFromTheWeightsOfAModel) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 4;
  run_text_training(run, folder.file("first"));
  run.model = Config();
  run.train.start = folder.file("first");
  run.train.seed = 9;
  run.checkpoint.every = 2;
  run.checkpoint.keep = 9;
  {
    TextRun still = run;
    still.optimizer.learning_rate = 1e-30, still.optimizer.min_learning_rate = 0;
    const TextRunResult result = run_text_training(still, folder.file("still"));
    const LoadedModel first = load_model(folder.file("first"));
    for (const auto& item : result.model->named_parameters())
      EXPECT_TRUE(torch::equal(item.value(), first.model->named_parameters()[item.key()])) << item.key();
  }
  run_text_training(run, folder.file("second"));
  EXPECT_THAT(read_file(folder.file("second/run.json")), HasSubstr(folder.file("first")));
  fs::rename(folder.file("first"), folder.file("elsewhere"));
  take_back_to(folder.file("second"), 2);
  EXPECT_EQ(run_text_training(run, folder.file("second"), {.resume = true}).resumed_from, 2) << "without the folder of the start";
  run.train.start = folder.file("elsewhere");
  run_text_training(run, folder.file("whole"));
  EXPECT_EQ(read_file(folder.file("second/model.safetensors")), read_file(folder.file("whole/model.safetensors")));

  const auto refusal = [&](const auto& change) {
    TextRun other = run;
    change(other);
    return message_of<Error>([&] { run_text_training(other, folder.file("out")); });
  };
  EXPECT_THAT(refusal([&](TextRun& other) { other.model = small_run(folder).model; }), "");
  fs::remove_all(folder.file("out"));
  EXPECT_THAT(refusal([](TextRun& other) { other.model = Config::parse_toml("preset = \"attn-tiny\"", "test"); }),
              HasSubstr("[model] is not the model of train.start, " + folder.file("elsewhere")));
  EXPECT_THAT(refusal([](TextRun& other) { other.data.tokenizer = "bpe"; }), HasSubstr("is not the tokenizer of train.start, "));
  EXPECT_THAT(refusal([&](TextRun& other) { other.train.start = folder.file("first"); }), HasSubstr("first: is not a model's folder"));
}

// With this seed a rate of Gated DeltaNet is initialized to 0, whose logarithm is infinite.
TEST(TextRun, ASeedThatDrawsARateOfNothingTrains) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.model = Config::parse_toml(
      "d_model = 16\nlayers = [\"m\", \"m\"]\nmlp = \"none\"\n[mixers.m]\ntype = \"gated_delta_net\"\nheads = 16\nhead_dim = 1\n", "test");
  run.train.seed = 418467;
  run.train.steps = 2;
  EXPECT_EQ(run_text_training(run, folder.file("out")).failure, "");
}

TEST(TextRun, InitialWeightsThatAreNotFiniteAreNamed) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.model = Config::parse_toml("d_model = 16\nlayers = [\"m\"]\n[mixers.m]\ntype = \"mamba\"\ndt_min = 1e300\ndt_max = 1e305\n", "test");
  const auto refusal = [&] { return message_of<Error>([&] { run_text_training(run, folder.file("out")); }); };
  EXPECT_THAT(refusal(),
              HasSubstr("the initial weights of layers.0.mixer.dt_bias are not finite (32 of 32 numbers), before the first step"));
  run.train.steps = 3;
  EXPECT_THAT(refusal(), HasSubstr("not finite")) << "the folder holds no run to go on with";
}

TEST(TextRun, RefusesWhatCannotBeBeforeItWritesAnything) {
  const TemporaryFolder folder;
  const auto refusal = [&](const auto& change) {
    TextRun run = small_run(folder);
    change(run);
    return message_of<Error>([&] { run_text_training(run, folder.file("out")); });
  };
  EXPECT_THAT(refusal([](TextRun& run) { run.train.length = 1 << 20; }), HasSubstr("too few for train.length"));
  EXPECT_THAT(refusal([&](TextRun& run) { run.data.train = folder.file("missing.txt"); }), HasSubstr("missing.txt"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.steps = 0; }), HasSubstr("train.steps"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.accumulate = 3; }), HasSubstr("multiple of train.accumulate"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.precision = "fp16"; }), HasSubstr("must be fp32 or bf16"));
  EXPECT_THAT(refusal([](TextRun& run) { run.checkpoint.keep = 0; }), HasSubstr("checkpoint.keep"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.graph = run.data.documents = true; }), HasSubstr("train.graph needs rows"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.graph = run.train.checkpoint_activations = true; }), HasSubstr("cannot record"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.device = "gpu"; }), HasSubstr("train.device must be cpu, cuda or cuda:N, got 'gpu'"));
  EXPECT_THAT(refusal([](TextRun& run) { run.train.device = "cuda:99"; }), HasSubstr("train.device = cuda:99: "));
  EXPECT_FALSE(fs::exists(folder.file("out")));
}

std::string pack(const TemporaryFolder& folder, const std::string& name, const std::string& text) {
  std::ofstream(folder.file(name + ".txt")) << text;
  pack_files({folder.file(name + ".txt")}, "auto", ByteTokenizer(), folder.file(name));
  return folder.file(name);
}

// Windows, order and loss are those of the text itself, whether it comes packed or not.
TEST(TextRun, PackedShardsTrainAsTheirTextDoes) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 6;
  const std::string text = read_file(run.data.train);
  run.data.valid = pack(folder, "valid", text.substr(0, 2000));
  const double loss = run_text_training(run, folder.file("text")).loop.state.loss;
  run.data.train = pack(folder, "train", text);
  EXPECT_EQ(run_text_training(run, folder.file("packed")).loop.state.loss, loss);
  run.data.valid = "";
  EXPECT_THAT(message_of<UsageError>([&] { run_text_training(run, folder.file("c")); }), HasSubstr("data.valid must name a held-out set"));
  run.data.valid = folder.file("valid");
  run.data.tokenizer = "bpe";
  EXPECT_THAT(message_of<UsageError>([&] { run_text_training(run, folder.file("c")); }), HasSubstr("packed already"));
}

TEST(TextData, DocumentsKeepApart) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("docs.jsonl")) << R"({"text":"abcde"})"
                                           << "\n"
                                           << R"({"text":"fg"})"
                                           << "\n"
                                           << R"({"text":"hijklmnopqrst"})"
                                           << "\n";
  TextDataConfig config;
  config.train = config.valid = folder.file("docs.jsonl");
  config.tokenizer = "bytes";
  const TextData data = load_text_data(config, 8);
  ASSERT_EQ(data.train->tokens(), 5 + 1 + 2 + 1 + 13 + 1);
  LoaderConfig loader_config;
  loader_config.length = 8;
  loader_config.batch = 2;
  loader_config.shuffle = false;
  loader_config.documents = true;
  const Batch batch = to_batch(Loader(data.train, loader_config).next());
  EXPECT_EQ(batch.rows.starts(), (std::vector<int64_t>{0, 6, 8, 9, 16}));
  EXPECT_EQ(batch.labels[5].item<int64_t>(), -100) << "behind the end of a document another begins";
  EXPECT_EQ(batch.labels[0].item<int64_t>(), 'b');
  EXPECT_EQ(batch.windows, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(batch.labelled, (batch.labels >= 0).sum().item<int64_t>());
}

class RecordedSteps : public ::testing::TestWithParam<const char*> {};

// Without, on the same device: the same numbers, dropout among them.
TEST_P(RecordedSteps, TrainAsOthersDo) {
  if (std::string(GetParam()) == "cuda" && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.device = GetParam();
  run.train.steps = 12;
  run.train.log_every = 1;
  run.train.precision = "bf16";
  run.train.accumulate = 2;
  run.model.set("embedding_dropout", Config(0.2));
  ASSERT_FALSE(run_text_training(run, folder.file("plain")).loop.interrupted) << "SIGTERM or SIGINT ended the training early";
  run.train.graph = true;
  ASSERT_FALSE(run_text_training(run, folder.file("graph")).loop.interrupted) << "SIGTERM or SIGINT ended the training early";
  EXPECT_EQ(read_file(folder.file("plain/metrics.jsonl")), read_file(folder.file("graph/metrics.jsonl")));
  for (const char* name : {"model.safetensors", "checkpoints/latest/optimizer.safetensors"})
    EXPECT_TRUE(read_file(folder.file("plain/") + name) == read_file(folder.file("graph/") + name)) << name;
}

INSTANTIATE_TEST_SUITE_P(Devices, RecordedSteps, ::testing::Values("cpu", "cuda"), [](const auto& device) { return device.param; });

struct NoOptions {
  template <class Visitor>
  void visit(Visitor&&) {}
};

// A mixer of another program may read values of a tensor on the host.
class ReadsValues final : public Mixer {
 public:
  ReadsValues(const NoOptions&, const MixerContext&) {}
  Tensor forward(const Tensor& x, const Pass&) override { return x * x.detach().abs().max().item<double>(); }
  MixerState make_state(int64_t slots) const override { return MixerState({{"sum", torch::zeros({slots, 1}, parameter_device())}}); }
  Tensor prefill(const Tensor& x, MixerState&, const Pass&) override { return x; }
  Tensor step(const Tensor& x, MixerState&, const Pass&) override { return x; }
};
BASED_DEFINE_MIXER(reads_values, ReadsValues, NoOptions, "of a test")

TEST(RecordedCudaSteps, AStepThatNoGraphCanHoldIsAnErrorThatSaysSo) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  static const bool registered = (register_mixer(mixer_info_reads_values()), true);
  EXPECT_TRUE(registered);
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.model = Config::parse_json(R"({"vocab_size": 257, "d_model": 32, "layers": ["reads_values"]})", "model");
  run.train.device = "cuda";
  run.train.steps = 2;
  run.train.graph = true;
  EXPECT_THAT(message_of<Error>([&] { run_text_training(run, folder.file("graph")); }),
              AllOf(HasSubstr("cannot be recorded"), HasSubstr("train.graph = false")));
  run.train.graph = false;
  EXPECT_EQ(run_text_training(run, folder.file("plain")).loop.state.step, 2) << "the device is as it was";
}

struct Variant {
  const char* name;
  void (*change)(TextRun& run);
};

class Resume : public ::testing::TestWithParam<Variant> {};

TEST_P(Resume, EqualsNeverHavingStopped) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 23;
  run.train.log_every = 2;
  run.checkpoint.every = 6;
  run.checkpoint.keep = 100;
  GetParam().change(run);
  if (run.train.device == "cuda" && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  run_text_training(run, folder.file("whole"));
  run_text_training(run, folder.file("resumed"));
  for (const int64_t step : {12, 6}) {
    take_back_to(folder.file("resumed"), step);
    const TextRunResult result = run_text_training(run, folder.file("resumed"), {.resume = true});
    EXPECT_EQ(result.resumed_from, step);
    EXPECT_EQ(result.loop.state.step, 23);
    expect_equal_results(folder.file("whole"), folder.file("resumed"));
  }
  const TextRunResult again = run_text_training(run, folder.file("resumed"), {.resume = true});
  EXPECT_EQ(again.resumed_from, 23) << "a finished run is left as it is";
  EXPECT_TRUE(again.loop.state.evaluation.contains("loss"));
  expect_equal_results(folder.file("whole"), folder.file("resumed"));
}

INSTANTIATE_TEST_SUITE_P(All, Resume,
                         ::testing::Values(Variant{"plain", [](TextRun&) {}},
                                           Variant{"bf16", [](TextRun& run) { run.train.precision = "bf16"; }},
                                           Variant{"accumulate", [](TextRun& run) { run.train.accumulate = 2; }},
                                           Variant{"dropout", [](TextRun& run) { run.model.set("embedding_dropout", Config(0.2)); }},
                                           Variant{"dropout_recomputed",
                                                   [](TextRun& run) {
                                                     run.model.set("embedding_dropout", Config(0.2));
                                                     run.train.checkpoint_activations = true;
                                                   }},
                                           Variant{"graph", [](TextRun& run) { run.train.graph = true; }},
                                           Variant{"cuda_graph_dropout",
                                                   [](TextRun& run) {
                                                     run.train.device = "cuda";
                                                     run.train.graph = true;
                                                     run.train.precision = "bf16";
                                                     run.model.set("embedding_dropout", Config(0.2));
                                                   }},
                                           Variant{"cuda", [](TextRun& run) { run.train.device = "cuda"; }},
                                           Variant{"cuda_bf16_accumulate",
                                                   [](TextRun& run) {
                                                     run.train.device = "cuda";
                                                     run.train.precision = "bf16";
                                                     run.train.accumulate = 2;
                                                   }},
                                           Variant{"cuda_dropout_recomputed",
                                                   [](TextRun& run) {
                                                     run.train.device = "cuda";
                                                     run.model.set("embedding_dropout", Config(0.2));
                                                     run.train.checkpoint_activations = true;
                                                   }},
                                           Variant{"cuda_documents",
                                                   [](TextRun& run) {
                                                     run.train.device = "cuda";
                                                     run.data.documents = true;
                                                   }},
                                           Variant{"documents",
                                                   [](TextRun& run) {
                                                     run.data.documents = true;
                                                     run.data.tokenizer = "bpe";
                                                     run.data.bpe_vocab_size = 300;
                                                   }}),
                         [](const auto& variant) { return variant.param.name; });

// A run's files name its device, and those of earlier versions have states of random generators. Another device can resume from them.
// The remedy that an evaluation names when the memory is full.
TEST(Resume, ActivationsMayBeKeptNoLonger) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 8;
  run.checkpoint.every = 4;
  run.checkpoint.keep = 100;
  const std::string out = folder.file("out");
  run_text_training(run, out);
  const auto before = results_of(out);
  take_back_to(out, 4);
  run.train.checkpoint_activations = true;
  EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, 4);
  auto after = results_of(out);
  EXPECT_EQ(after.at("metrics.jsonl"), before.at("metrics.jsonl"));
  EXPECT_EQ(after.at("model.safetensors"), before.at("model.safetensors"));
}

// Not the text, which is the same.
TEST(Resume, AnotherWeightOfASetIsNamed) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 2;
  run.data.tokenizer = "bytes";
  run.data.sets = {{run.data.train, 1}, {run.data.train, 0.5}};
  run.data.valid = std::exchange(run.data.train, "");
  const std::string out = folder.file("out");
  run_text_training(run, out);
  run.data.sets[1].weight = 0.25;
  EXPECT_THAT(message_of<UsageError>([&] { run_text_training(run, out, {.resume = true}); }),
              HasSubstr("--resume: data.sets: the weight of " + run.data.valid + " is 0.25, the run in " + out + " has 0.5"));
}

TEST(Resume, ACheckpointFromAnotherDeviceGoesOn) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 8;
  run.checkpoint.every = 4;
  run.checkpoint.keep = 100;
  const std::string out = folder.file("out"), step = out + "/checkpoints/step-4";
  run_text_training(run, out);
  const auto before = results_of(out);
  take_back_to(out, 4);
  const std::string state = read_file(step + "/trainer.json"), device = R"("device": "cpu")";
  ASSERT_THAT(state, HasSubstr(device));
  write_file_atomic(step + "/trainer.json", std::string(state).replace(state.find(device), device.size(), R"("device": "cuda")"));
  {
    const std::string path = step + "/optimizer.safetensors", bytes = read_file(path);
    write_file_atomic(folder.file("copy"), bytes);
    const SafetensorsFile file(folder.file("copy"));
    std::vector<TensorView> views = file.tensors();
    const std::vector<std::byte> random(16);
    for (const char* name : {"random.cpu", "random.cuda"}) views.push_back({name, DType::U8, {16}, random});
    write_safetensors(path, views);
  }
  write_manifest(step);
  const TextRunResult result = run_text_training(run, out, {.resume = true});
  EXPECT_EQ(result.resumed_from, 4);
  const auto after = results_of(out);
  for (const char* name : {"metrics.jsonl", "model.safetensors", "checkpoints/step-8/optimizer.safetensors"})
    EXPECT_TRUE(after.at(name) == before.at(name)) << name;
}

// The same values on both sides, though not the same bits.
TEST(Resume, AGpuGoesOnWhereACpuStoppedAndTheOtherWayRound) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 12;
  run.checkpoint.every = 6;
  run.checkpoint.keep = 100;
  const double wanted = run_text_training(run, folder.file("cpu")).loop.state.loss;
  for (const char* first : {"cpu", "cuda"}) {
    const std::string out = folder.file(std::string("first-") + first);
    run.train.device = first;
    run_text_training(run, out);
    take_back_to(out, 6);
    run.train.device = run.train.device == "cpu" ? "cuda" : "cpu";
    const TextRunResult result = run_text_training(run, out, {.resume = true});
    EXPECT_EQ(result.resumed_from, 6);
    EXPECT_NEAR(result.loop.state.loss, wanted, 1e-3 * wanted) << first;
  }
}

TEST(Resume, ADamagedCheckpointGivesWayToTheOneBefore) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.checkpoint.every = 10;
  run.checkpoint.keep = 3;
  const std::string out = folder.file("out"), weights = out + "/checkpoints/step-30/model.safetensors";
  run_text_training(run, out);
  std::string bytes = read_file(weights), before = bytes, metrics = read_file(out + "/metrics.jsonl");
  bytes[bytes.size() - 100] ^= 1;
  write_file_atomic(weights, bytes);
  EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, 20);
  EXPECT_TRUE(read_file(weights) == before);
  EXPECT_EQ(read_file(out + "/metrics.jsonl"), metrics);
}

TEST(Resume, WithoutACheckpointTheRunBegins) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 2;
  EXPECT_EQ(run_text_training(run, folder.file("out"), {.resume = true}).resumed_from, -1);
}

TEST(Resume, AnotherRunIsRefused) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 4;
  const std::string out = folder.file("out");
  run_text_training(run, out);
  const auto before = results_of(out);
  EXPECT_THAT(message_of<UsageError>([&] { run_text_training(run, out); }), HasSubstr("the checkpoints of a run; --resume continues it"));
  const auto refusal = [&](const auto& change) {
    TextRun other = run;
    change(other);
    return message_of<UsageError>([&] { run_text_training(other, out, {.resume = true}); });
  };
  EXPECT_THAT(refusal([](TextRun& other) { other.train.steps = 5; }),
              HasSubstr("--resume: train.steps is 5, the run in " + out + " has 4"));
  EXPECT_THAT(refusal([](TextRun& other) { other.optimizer.learning_rate = 2e-2; }), HasSubstr("optimizer.learning_rate is 0.02"));
  EXPECT_THAT(refusal([](TextRun& other) { other.model.set("norm_eps", Config(1e-6)); }), HasSubstr("model.norm_eps is 1e-06"));
  EXPECT_THAT(refusal([](TextRun& other) { std::ofstream(other.data.train, std::ios::app) << "one line more, here it is\n"; }),
              HasSubstr("are not those that the run began with"));
  write_text(folder);
  EXPECT_EQ(refusal([](TextRun& other) { other.checkpoint.every = 3; }), "") << "when to save is no part of the run";
  EXPECT_EQ(results_of(out).at("metrics.jsonl"), before.at("metrics.jsonl"));
}

// The checkpoint is changed to that of an older program that had neither key: a run resumes with the defaults and refuses other values.
TEST(Resume, KeysThatCameLaterHaveTheirDefaults) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 4;
  run.checkpoint.every = 2;
  run.checkpoint.keep = 100;
  const std::string out = folder.file("out"), step = out + "/checkpoints/step-2";
  run_text_training(run, out);
  const auto before = results_of(out);
  take_back_to(out, 2);
  std::string state = read_file(step + "/trainer.json");
  for (const char* line : {"\"seed\": 0,", "\"norm_eps\": 1e-05,"}) {
    ASSERT_THAT(state, HasSubstr(line));
    state.erase(state.find(line), std::string(line).size());
  }
  write_file_atomic(step + "/trainer.json", state);
  write_manifest(step);
  run.train.seed = 2;
  EXPECT_THAT(message_of<UsageError>([&] { run_text_training(run, out, {.resume = true}); }),
              HasSubstr("--resume: train.seed is 2, the run in " + out + " has 0"));
  run.train.seed = 0;
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the run was saved before these keys existed, which get their defaults: model.norm_eps = 1e-05, train.seed = 0"));
  EXPECT_TRUE(results_of(out).at("model.safetensors") == before.at("model.safetensors"));
}

TEST(Resume, AFileThatTheManifestCoversButThatMakesNoSenseIsNamed) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 2;
  const std::string out = folder.file("out"), step = out + "/checkpoints/step-2";
  run_text_training(run, out);
  const auto with = [&](const std::string& name, const std::string& content) {
    const std::string before = read_file(step + "/" + name);
    write_file_atomic(step + "/" + name, content);
    write_manifest(step);
    const std::string message = message_of<Error>([&] { run_text_training(run, out, {.resume = true}); });
    write_file_atomic(step + "/" + name, before);
    write_manifest(step);
    return message;
  };
  EXPECT_THAT(with("trainer.json", "{\"loop\": {\"stp\": 3}}"), HasSubstr("trainer.json"));
  EXPECT_THAT(with("trainer.json", "{\"loop\": {\"step\": -3}}"), HasSubstr("must not be negative"));
  EXPECT_THAT(with("optimizer.safetensors", read_file(step + "/model.safetensors")), HasSubstr("has no tensor 'first_moment."));
  EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, 2);
}

// A file size limit simulates a full disk: no save succeeds, all steps are done, and the run can be resumed later.
TEST(Resume, WhereTheDiskIsFullTheOldCheckpointStaysAndTrainingGoesOn) {
  const TemporaryFolder folder;
  TextRun run = small_run(folder);
  run.train.steps = 20;
  run.train.log_every = 1;
  run.checkpoint.every = 5;
  run.checkpoint.best = false;
  const std::string whole = folder.file("whole"), out = folder.file("out");
  run_text_training(run, whole);
  run_text_training(run, out);
  take_back_to(out, 15);
  run.checkpoint.every = 1;
  Checkpoints checkpoints(out + "/checkpoints", 1);
  ASSERT_EQ(checkpoints.newest_whole(), 15);
  {
    const FileSizeLimit limit(20'000);
    EXPECT_THAT(message_of<Error>([&] { run_text_training(run, out, {.resume = true}); }),
                HasSubstr("model.safetensors: cannot write: File too large"));
  }
  EXPECT_EQ(checkpoints.newest_whole(), 15);
  EXPECT_EQ(read_file(out + "/metrics.jsonl"), read_file(whole + "/metrics.jsonl")) << "every step was done";
  run.checkpoint.every = 5;
  EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, 15);
  expect_equal_results(whole, out);
}

}  // namespace text_run_test
}  // namespace based
