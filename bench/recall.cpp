// Training steps of the published recall models on a GPU, one of each shape of an epoch, recorded as in `based experiment run`: two layers
// (BaseConv and a mixer, or the mixer twice), vocabulary 8192, batch 256, fp32 and TF32 products.
#include "based/core/log.h"
#include "based/data/mqar.h"
#include "based/models/device.h"
#include "based/train/step.h"
#include "bench/model.h"

namespace based::bench {
namespace recall_case {

struct Shape {
  int64_t length, pairs, steps;  // steps: of this shape in an epoch
};
constexpr Shape kEpoch[] = {{64, 4, 391}, {128, 8, 79}, {256, 16, 79}, {256, 32, 79}, {256, 64, 79}};
constexpr int64_t kBatch = 256, kEpochs = 32;

using Options = std::vector<std::pair<const char*, Config>>;

struct Model {
  std::string name;
  int64_t d_model;
  bool own_block;  // true: two layers of the mixer; false: a BaseConv layer and one layer of the mixer
  Options mixer;
  double peer_64 = 0, peer_256 = 0;  // ms of zoology's step at 64/4 and 256/64 on this GPU, eager fp32; 0: not measured
  bool sums_cancel = false;          // normalizes by sums of both signs, which may cancel; verified with an eps larger than the sums
};

Config text(const char* value) { return Config(std::string(value)); }
Config number(int64_t value) { return Config(value); }
Model based(const char* name, int64_t d_model, int64_t feature_dim, double peer_64, double peer_256) {
  const Options mixer{{"type", text("taylor_attention")}, {"heads", number(1)}, {"feature_dim", number(feature_dim)}};
  return {name, d_model, false, mixer, peer_64, peer_256};
}
Options softmax(const char* type) {
  return {{"type", text(type)}, {"heads", number(1)}, {"rotary_dim", number(0)}, {"qkv_bias", Config(true)}, {"out_bias", Config(true)}};
}
Model attention() {
  Options mixer = softmax("attention");
  mixer.emplace_back("dropout", Config(0.1));
  return {"attention d 64", 64, false, mixer};
}
Model window() {
  Options mixer = softmax("sliding_window");
  mixer.emplace_back("window", number(64));
  return {"window d 128, 64 keys", 128, false, mixer};
}

std::vector<Model> models_with_a_convolution() {
  return {based("Based d 48, d' 8", 48, 8, 4.4, 13.1), based("Based d 64, d' 16", 64, 16, 4.8, 16.1),
          based("Based d 128, d' 24", 128, 24, 6.4, 24.3), attention(), window()};
}
std::vector<Model> models_of_two_mixers() {
  std::vector<Model> models{{"Mamba d 128, state 16", 128, true, {{"type", text("mamba")}, {"d_state", number(16)}}}};
  for (const int64_t d_model : {64, 128, 256}) {
    const std::string width = " d " + std::to_string(d_model);
    const int64_t state = d_model / 4;
    models.push_back({"H3" + width + ", state " + std::to_string(state),
                      d_model,
                      true,
                      {{"type", text("h3")}, {"d_state", number(state)}, {"head_dim", number(2)}}});
    models.push_back({"Hyena" + width, d_model, true, {{"type", text("hyena")}, {"l_max", number(1024)}}});
  }
  return models;
}

// A feature map whose features are as wide as the model, as in figure 3.
Model linear(const char* map, int64_t d_model, bool sums_cancel = false) {
  const Options mixer{{"type", text("linear_attention")},
                      {"heads", number(1)},
                      {"feature_map", text(map)},
                      {"feature_dim", number(d_model)},
                      {"rescale_output", Config(false)}};
  Model model{std::string(map) + " d " + std::to_string(d_model), d_model, false, mixer};
  model.sums_cancel = sums_cancel;
  return model;
}
std::vector<Model> models_of_feature_maps() {
  std::vector<Model> models;
  for (const int64_t d_model : {64, 128, 256, 512}) models.push_back(linear("pos_elu", d_model));
  for (const char* map : {"relu", "square", "cosformer", "performer"}) models.push_back(linear(map, 128));
  for (const char* map : {"identity", "all_poly"}) models.push_back(linear(map, 128, /*sums_cancel=*/true));
  return models;
}

// One model of each series of the extended figure and of the later mixers.
std::vector<Model> models_of_other_figures() {
  const auto with_heads = [](const char* type, int64_t heads) {
    return Model{
        std::string(type) + " d 128, heads " + std::to_string(heads), 128, false, {{"type", text(type)}, {"heads", number(heads)}}};
  };
  std::vector<Model> models{
      {"scatterbrain d 128, 64 keys, d' 64",
       128,
       false,
       {{"type", text("scatterbrain")}, {"window", number(64)}, {"feature_dim", number(64)}}},
      {"bigbird d 64, blocks of 16", 64, false, {{"type", text("bigbird")}, {"block_size", number(16)}}},
      {"nystromformer d 128, 64 landmarks", 128, false, {{"type", text("nystromformer")}, {"landmarks", number(64)}}},
      {"mamba2 d 128, state 64", 128, true, {{"type", text("mamba2")}, {"headdim", number(32)}, {"d_state", number(64)}}}};
  for (const char* type : {"gla", "delta_net", "gated_delta_net"})
    for (const int64_t heads : {1, 4}) models.push_back(with_heads(type, heads));
  return models;
}

ModelConfig config_of(const Model& model) {
  ModelConfig config;
  config.d_model = model.d_model;
  config.vocab_size = 8192;
  config.mlp = "identity";
  config.norm = "layer_norm";
  config.embedding_dropout = 0.1;
  config.layers = {model.own_block ? "mixer" : "base_conv", "mixer"};
  Config mixer{Config::Table{}};
  for (const auto& [name, value] : model.mixer) mixer.set(name, value);
  config.mixers["mixer"] = mixer;
  return config;
}

Batch batch_of(const Shape& shape, int64_t rows, torch::Device device) {
  MqarConfig task;
  task.length = shape.length;
  task.pairs = shape.pairs;
  task.examples = rows;
  const MqarData data = make_mqar(task);
  const auto on_device = [&](const std::vector<int32_t>& values) { return torch::tensor(values).to(torch::kInt64).to(device); };
  const torch::Tensor labels = on_device(data.labels), places = (labels >= 0).nonzero().squeeze(1);
  const Sequences all = Sequences::equal(rows, shape.length, device);
  return {on_device(data.inputs), labels.index_select(0, places), all, {}, rows * shape.pairs, places};
}

std::shared_ptr<LanguageModel> model_of(const ModelConfig& config, torch::Device device) {
  torch::manual_seed(4);
  const auto model = std::make_shared<LanguageModel>(config);
  model->to(device);
  return model;
}

// Compares the loss and the embedding's gradient on a few examples with fp64 on the CPU.
double check(const Model& shape_of, torch::Device device) {
  ModelConfig config = config_of(shape_of);
  if (shape_of.sums_cancel) config.mixers["mixer"].set("eps", Config(1e3));
  const auto model = model_of(config, device);
  const auto gradient = [&](LanguageModel& tested) {
    tested.eval();
    const Batch batch = batch_of(kEpoch[4], 3, tested.device());
    const torch::Tensor loss = tested.loss(batch.ids, batch.labels, batch.rows, batch.labelled, {}, batch.places);
    return std::pair(loss.detach().cpu(), torch::autograd::grad({loss}, {tested.named_parameters()["embedding"]})[0].cpu());
  };
  const auto exact = exact_copy(*model);
  const auto [loss, by_embedding] = gradient(*model);
  const auto [exact_loss, exact_by_embedding] = gradient(*exact);
  verify(loss, exact_loss, 1e-3, shape_of.name + " loss");
  return verify(by_embedding, exact_by_embedding, 1e-2, shape_of.name + " gradient");
}

void measure(Context& context, const Model& shape_of, bool tf32) {
  release_cached_memory(context.device);  // the previous model's recorded training step uses most of the memory
  at::globalContext().setAllowTF32CuBLAS(tf32);
  const double error = check(shape_of, context.device);
  const auto model = model_of(config_of(shape_of), context.device);
  const std::string precision = tf32 ? "tf32" : "fp32";
  AdamW optimizer(*model, {});
  TrainStep step(*model, optimizer, {.recordings = 5});
  double run_seconds = 0;
  Result result{"recall training step", shape_of.name + " " + precision, 0, "ms", 0, 0, "", error};
  for (const Shape& shape : kEpoch) {
    if (context.quick && &shape != &kEpoch[4]) continue;
    const Batch batch = batch_of(shape, kBatch, context.device);
    const int repeats = context.quick ? 2 : 20;
    const double seconds = median_seconds(
                               [&] {
                                 for (int i = 0; i < repeats; ++i) step.run({batch}, i, 1e-4);
                                 synchronize(context.device);
                               },
                               context.quick ? 1 : 5) /
                           repeats;
    run_seconds += seconds * static_cast<double>(shape.steps * kEpochs);
    result.more["ms_" + std::to_string(shape.length) + "_" + std::to_string(shape.pairs)] = seconds * 1e3;
  }
  result.value = run_seconds * 1e3 / (707 * kEpochs);
  result.more["run_seconds_without_tests"] = run_seconds;
  if (shape_of.peer_256 > 0) {
    result.more["peer_over_ours_64_4"] = shape_of.peer_64 / result.more["ms_64_4"];
    result.more["peer_over_ours_256_64"] = shape_of.peer_256 / result.more["ms_256_64"];
  }
  context.add(std::move(result));
}

void run(Context& context) {
  std::string failed;
  const auto measure_all = [&](const std::vector<Model>& models, bool tf32) {
    for (const Model& model : models) try {
        if (context.measures_beginning(model.name)) measure(context, model, tf32);
      } catch (const std::exception& error) {  // continue with the other models
        log_error("gpu_recall: " + model.name + ": " + error.what());
        failed += (failed.empty() ? "" : "; ") + model.name;
      }
    at::globalContext().setAllowTF32CuBLAS(false);
  };
  for (const bool tf32 : {true, false}) measure_all(models_with_a_convolution(), tf32);
  for (const auto& models : {models_of_two_mixers(), models_of_feature_maps(), models_of_other_figures()}) measure_all(models, true);
  if (!failed.empty()) throw Error("gpu_recall: not measured: " + failed);
}

}  // namespace recall_case

const Case case_gpu_recall{"gpu_recall", "training steps of the published recall models, on a GPU", recall_case::run, true, nullptr, true};

}  // namespace based::bench
