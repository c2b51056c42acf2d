// One training step on MQAR at the published sizes: two layers (BaseConv, Taylor attention), no MLP, vocabulary 8192, batch 64.
#include "based/data/mqar.h"
#include "based/models/language_model.h"
#include "based/train/optimizer.h"
#include "bench/case.h"

namespace based::bench {
namespace mqar_case {

ModelConfig model_config() {
  ModelConfig config;
  config.d_model = 64;
  config.vocab_size = 8192;
  config.mlp = "none";
  config.norm = "layer_norm";
  config.layers = {"base_conv", "taylor"};
  Config taylor{Config::Table{}};
  taylor.set("type", Config(std::string("taylor_attention")));
  taylor.set("heads", Config(int64_t{1}));
  taylor.set("feature_dim", Config(int64_t{16}));
  config.mixers["taylor"] = taylor;
  return config;
}

double loss_error(LanguageModel& model, const torch::Tensor& ids, const torch::Tensor& labels, const Sequences& rows) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor loss = model.loss(ids, labels, rows);
  LanguageModel exact(model.config());
  const auto weights = model.named_parameters();
  for (const auto& item : exact.named_parameters()) item.value().copy_(weights[item.key()]);
  exact.to(torch::kDouble);
  return verify(loss, exact.loss(ids, labels, rows), 1e-4, "MQAR loss");
}

void run(Context& context) {
  torch::manual_seed(4);
  // zoology's step takes 1144 ms on two cores of a machine with 204 GFLOP/s of fp32 GEMM.
  constexpr double peer_ms = 1144, peer_gflops = 204;
  constexpr int64_t batch = 64, length = 256;
  MqarConfig task;
  task.length = length;
  task.pairs = 64;
  task.examples = batch;
  const MqarData data = make_mqar(task);
  const torch::Tensor ids = torch::tensor(data.inputs).to(torch::kInt64), labels = torch::tensor(data.labels).to(torch::kInt64);
  const Sequences rows = Sequences::equal(batch, length);
  LanguageModel model(model_config());
  const double error = loss_error(model, ids, labels, rows);
  AdamW optimizer(model, {});
  const double seconds = median_seconds(
      [&] {
        optimizer.zero_grad();
        const torch::Tensor loss = model.loss(ids, labels, rows);
        loss.backward();
        optimizer.clip_gradients(loss);
        optimizer.step(1e-3);
      },
      context.quick ? 3 : 11);
  const double rate = context.ceilings.gemm_gflops(torch::kFloat), peer = peer_ms * peer_gflops / rate;
  // The output projection at labelled tokens: forward, and both backward products.
  const double floor = 6.0 * static_cast<double>(batch * task.pairs * 64 * task.vocab_size) / (rate * 1e9);
  context.add({"MQAR training step",
               "N=256 batch 64 d=64 d'=16 fp32",
               seconds * 1e3,
               "ms",
               floor * 1e3,
               floor / seconds,
               "projection to the vocabulary where labels are, fp32 GEMM " + std::to_string(static_cast<int64_t>(rate)) + " GFLOP/s",
               error,
               {{"peer_ms_scaled", peer}, {"times_faster_than_peer", peer / (seconds * 1e3)}}});
}

}  // namespace mqar_case

const Case case_mqar{"mqar", "a training step on MQAR at the published sizes", mqar_case::run};

}  // namespace based::bench
