// Twenty steps of a small language model as torch.optim.AdamW does them: loss, gradient norm and rate of each, and the weights at the end.
#include <gtest/gtest.h>

#include "based/core/json.h"
#include "based/models/golden/reference_model.h"
#include "based/models/tensor_view.h"
#include "based/train/loop.h"
#include "tests/data/goldens.h"

namespace based {
namespace {

void expect_agreement(const SafetensorsFile& file, torch::Dtype dtype) {
  const Json config = parse_json(file.metadata_at("config"), file.path());
  const golden::ReferenceModel reference =
      golden::reference_model("AdamW", config, golden::PeerParameters(file, ""), config["n_positions"]);
  ASSERT_EQ(reference.skipped, "");
  LanguageModel model(reference.config);
  model.to(dtype);
  const auto parameters = model.named_parameters();
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [theirs, ours] : reference.names)
      if (file.find("param0." + theirs)) parameters[ours].copy_(tensor_of(file.at("param0." + theirs)));
  }
  OptimizerOptions options;
  const auto steps = config["steps"].get<int64_t>();
  options.learning_rate = config["lr"];
  options.min_learning_rate = config["lr_min"];
  options.warmup = config["warmup"].get<double>() / static_cast<double>(steps);
  options.weight_decay = config["weight_decay"];
  options.clip = config["clip"];
  AdamW optimizer(model, options);
  const Tensor ids = tensor_of(file.at("ids")), losses = tensor_of(file.at("loss")), norms = tensor_of(file.at("grad_norm")),
               rates = tensor_of(file.at("lr"));
  const bool exact = dtype == torch::kDouble;
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor rows = ids[step];
    const Tensor loss =
        model.loss(rows.slice(1, 0, -1).flatten(), rows.slice(1, 1).flatten(), Sequences::equal(rows.size(0), rows.size(1) - 1));
    const double wanted = losses[step].item<double>(), norm = norms[step].item<double>();
    EXPECT_NEAR(loss.item<double>(), wanted, (exact ? 1e-10 : 1e-4) * wanted) << step;
    optimizer.zero_grad();
    loss.backward();
    EXPECT_NEAR(optimizer.clip_gradients(loss).figures[1].item<double>(), norm, (exact ? 1e-10 : 1e-3) * norm) << step;
    const double rate = learning_rate(options, step, steps);
    EXPECT_NEAR(rate, rates[step].item<double>(), 1e-15) << step;
    optimizer.step(rate);
  }
  for (const auto& [theirs, ours] : reference.names) {
    if (!file.find("param." + theirs)) continue;
    const Tensor wanted = tensor_of(file.at("param." + theirs));
    const double error = ((parameters[ours].to(torch::kDouble) - wanted).abs().max() / wanted.abs().max()).item<double>();
    EXPECT_LT(error, exact ? 1e-9 : 1e-2) << ours;
  }
}

TEST(OptimizerGolden, TwentyStepsAgree) {
  const std::string path = test::golden("optim/adamw_attention_lm.safetensors");
  BASED_NEEDS(path);
  const SafetensorsFile file(path);
  expect_agreement(file, torch::kDouble);
  expect_agreement(file, torch::kFloat);
}

}  // namespace
}  // namespace based
