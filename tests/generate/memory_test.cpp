// Estimates of memory, without a device.
#include "based/generate/memory.h"

#include <gtest/gtest.h>

#include "based/models/config.h"
#include "based/models/quantised.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based::memory_test {

// int8 weights save memory on a GPU only where no step needs full ones beside them.
TEST(EngineBytes, FullWeightsAreCountedOnlyWhereAnEngineMakesThem) {
  const torch::Device gpu(torch::kCUDA, 0);
  const ModelPlace full{find_preset("based-360m"), torch::kBFloat16, gpu}, int8{full.config, full.dtype, gpu, ops::WeightForm::int8};
  const double parameters = static_cast<double>(parameter_count(full.config));
  const double of_full = engine_bytes(full, {.slots = 1}).fixed;
  EXPECT_LT(engine_bytes(int8, {.slots = 1}).fixed, of_full - 0.5 * parameters);
  EXPECT_GT(engine_bytes(int8, {.slots = 2}).fixed, of_full + 0.9 * parameters);
  EngineOptions invariant{.slots = 1};
  invariant.decode.invariant = true;
  EXPECT_GT(engine_bytes(int8, invariant).fixed, of_full + 0.9 * parameters) << "its steps have several rows";
  EXPECT_EQ(engine_bytes(full, {.slots = 2}).fixed, of_full);
  EXPECT_FALSE(needs_full_weights({.slots = 2}, torch::kCPU));
}

// A CPU has no full weights beside quantised ones. The estimate without activations is the tensors' bytes and one full layer.
TEST(EngineBytes, QuantisedWeightsOfACpuAreTheBytesOfTheModel) {
  const TemporaryFolder folder;
  const auto full = distinct_model(torch::kCPU, "based-tiny");
  full->to(torch::kBFloat16);
  save_model(*full, folder.file("full"));
  for (const auto form : {ops::WeightForm::int8, ops::WeightForm::int4}) {
    const std::string out = folder.file(weight_form_name(form));
    quantise_model(folder.file("full"), out, form);
    const auto model = load_model(out).model;
    double tensors = 0, largest = 0, saved = 0;
    for (const Tensor& parameter : model->parameters()) tensors += static_cast<double>(parameter.nbytes());
    for (const auto& [name, layer] : quantisable_layers(*model)) {
      if (!layer->quantised()) continue;
      tensors += static_cast<double>(layer->quantised()->bytes());
      const auto of_full = static_cast<double>(layer->quantised()->out() * layer->quantised()->in() * 2);
      largest = std::max(largest, of_full), saved += of_full;
    }
    tensors += static_cast<double>(model->quantised_head()->bytes());
    const ModelPlace place{model->config(), torch::kBFloat16, torch::kCPU, form}, plain{place.config, place.dtype, place.device};
    const double difference = engine_bytes(plain, {.slots = 1}).fixed - engine_bytes(place, {.slots = 1}).fixed;
    const double stored = static_cast<double>(model->parameter_count()) * 2 - difference - largest;
    EXPECT_NEAR(stored, tensors, 0.001 * tensors) << weight_form_name(form);
    EXPECT_GT(saved, largest);
  }
}

}  // namespace based::memory_test
