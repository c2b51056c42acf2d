// For every mixer and type: a model that was saved and loaded gives the same bits as the model in memory.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <fstream>

#include "based/eval/perplexity.h"
#include "based/generate/session.h"
#include "based/mixers/kit/mixer.h"
#include "based/models/weights.h"
#include "based/train/checkpoints.h"
#include "based/train/run_state.h"
#include "based/train/text_run.h"
#include "tests/core/temporary_folder.h"
#include "tests/train/results.h"

namespace based {
namespace model_files_test {

using torch::Tensor;

ModelConfig model_of(const std::string& mixer) {
  ModelConfig config;
  config.d_model = 64;  // a multiple of all mixers' default head dimensions
  config.layers = {"m", "m"};
  config.mlp_width = 32;
  config.norm = "layer_norm";
  Config options{Config::Table{{"type", Config(mixer)}}};
  for (const auto& field : find_mixer(mixer).help())
    if (field.name == "heads") options.set("heads", Config(int64_t{2}));
  config.mixers["m"] = options;
  return config;
}

std::vector<int64_t> text_of(int64_t length) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((i * i * 7 + 3 * i) % 251);
  return ids;
}

using Given = std::tuple<std::string, torch::Dtype, torch::DeviceType>;

class FromFiles : public testing::TestWithParam<Given> {
 protected:
  void SetUp() override {
    if (device() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    model_ = make_model(model_of(mixer()), 3);
    model_->eval();
    model_->to(device(), dtype());
    save_model(*model_, folder_.path());
  }
  std::string mixer() const { return std::get<0>(GetParam()); }
  torch::Dtype dtype() const { return std::get<1>(GetParam()); }
  torch::Device device() const { return std::get<2>(GetParam()); }
  bool recurrent() const { return find_mixer(mixer()).recurrent; }
  std::shared_ptr<LanguageModel> load() const { return load_model(folder_.path(), {}, device()).model; }

  TemporaryFolder folder_;
  std::shared_ptr<LanguageModel> model_;
};

// Buffers, which are not stored in files, also have the type and the numbers of a model of this type.
void expect_equal(const torch::nn::Module& one, const torch::nn::Module& other) {
  const auto compare = [](const auto& all, const auto& others) {
    ASSERT_EQ(all.size(), others.size());
    for (const auto& item : all) {
      EXPECT_EQ(item.value().scalar_type(), others[item.key()].scalar_type()) << item.key();
      EXPECT_EQ(item.value().device(), others[item.key()].device()) << item.key();
      EXPECT_TRUE(item.value().equal(others[item.key()])) << item.key();
    }
  };
  compare(one.named_parameters(), other.named_parameters());
  compare(one.named_buffers(), other.named_buffers());
}

TEST_P(FromFiles, ComesBackAsItWas) {
  expect_equal(*load(), *model_);
  // In another type than the stored one, as with --dtype.
  for (const torch::Dtype type : {torch::kFloat32, torch::kBFloat16, torch::kFloat64}) {
    const auto converted = make_model(model_of(mixer()), 3);
    converted->to(device(), dtype());
    converted->to(type);
    expect_equal(*load_model(folder_.path(), type, device()).model, *converted);
  }
}

TEST_P(FromFiles, Computes) {
  const torch::NoGradGuard no_grad;
  const Tensor ids = torch::tensor(text_of(40)).to(device());
  const Sequences rows = Sequences::equal(2, 20, device());
  EXPECT_TRUE(load()->forward(ids, rows).equal(model_->forward(ids, rows)));
  EXPECT_EQ(load()->loss(ids, ids, rows).item<double>(), model_->loss(ids, ids, rows).item<double>());
}

TEST_P(FromFiles, Generates) {
  if (!recurrent()) GTEST_SKIP() << "has no recurrent form";
  const auto generated = [](const std::shared_ptr<LanguageModel>& model) {
    Session session(*model);
    session.append(text_of(30));
    for (int i = 0; i < 8; ++i) session.next({.seed = 5});
    return session.ids();
  };
  EXPECT_EQ(generated(load()), generated(model_));
}

TEST_P(FromFiles, MeasuresPerplexity) {
  if (!recurrent()) GTEST_SKIP() << "has no recurrent form";
  const auto nats = [](const std::shared_ptr<LanguageModel>& model) {
    return measure_perplexity(*model, {text_of(50), text_of(7)}, {.context = 20}).nats;
  };
  EXPECT_EQ(nats(load()), nats(model_));
}

TEST_P(FromFiles, GoesOnFromASavedState) {
  if (!recurrent()) GTEST_SKIP() << "has no recurrent form";
  const auto one = load(), two = load();
  Session session(*one), other(*two);
  session.append(text_of(30));
  session.next({});
  session.save(folder_.file("text.state"), "a model");
  other.load(folder_.file("text.state"), "a model");
  for (int i = 0; i < 6; ++i) EXPECT_EQ(session.next({}), other.next({}));
}

TEST_P(FromFiles, TrainsOn) {
  const Tensor ids = torch::tensor(text_of(40)).to(device());
  const std::vector<Batch> batches{{ids, ids.roll(-1, 0), Sequences::equal(2, 20, device()), {}, 40}};
  const auto step = [&](LanguageModel& model, AdamW& optimizer, int64_t at) { TrainStep(model, optimizer).run(batches, at, 1e-2); };
  model_->train();
  AdamW optimizer(*model_, {});
  step(*model_, optimizer, 0);
  save_model(*model_, folder_.path());
  RunState state;
  state.run = Config(Config::Table{});
  save_run_state(folder_.path(), state, optimizer);
  const auto loaded = load();
  loaded->train();
  AdamW other(*loaded, {});
  load_optimizer(folder_.path(), other);
  step(*model_, optimizer, 1);
  step(*loaded, other, 1);
  expect_equal(*loaded, *model_);
}

// As in `based train --resume`, which does not support fp64.
TEST_P(FromFiles, ARunResumes) {
  if (dtype() == torch::kFloat64) GTEST_SKIP() << "no precision of a run";
  TextRun run;
  run.model = write_config(model_of(mixer()));
  run.data.train = folder_.file("text.txt");
  std::ofstream text(run.data.train);
  for (int i = 0; i < 200; ++i) text << "line " << i * 37 % 101 << " of a text\n";
  text.close();
  run.data.tokenizer = "bytes";
  run.train.steps = 2, run.train.batch = 2, run.train.length = 16;
  run.train.evaluate_every = 0, run.train.evaluate_batches = 1;
  run.train.precision = dtype() == torch::kBFloat16 ? "bf16" : "fp32";
  run.train.device = device().is_cpu() ? "cpu" : "cuda";
  run.checkpoint.every = 1, run.checkpoint.keep = 3;
  run_text_training(run, folder_.file("whole"));
  const std::string out = folder_.file("resumed");
  run_text_training(run, out);
  std::filesystem::remove_all(Checkpoints(out + "/checkpoints", 3).path(2));  // as if the run had been killed after the first step
  for (const char* name : {"model.safetensors", "config.json"}) std::filesystem::remove(out + "/" + name);
  EXPECT_EQ(run_text_training(run, out, {.resume = true}).resumed_from, 1);
  expect_equal_results(folder_.file("whole"), out);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const MixerInfo& info : mixers()) all.emplace_back(info.name);
  return all;
}

std::string test_name(const testing::TestParamInfo<Given>& given) {
  const auto& [mixer, dtype, device] = given.param;
  const char* type = dtype == torch::kFloat32 ? "_fp32" : dtype == torch::kBFloat16 ? "_bf16" : "_fp64";
  return mixer + type + (device == torch::kCUDA ? "_cuda" : "");
}

INSTANTIATE_TEST_SUITE_P(EveryMixer, FromFiles,
                         testing::Combine(testing::ValuesIn(names()), testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat64),
                                          testing::Values(torch::kCPU, torch::kCUDA)),
                         test_name);

}  // namespace model_files_test
}  // namespace based
