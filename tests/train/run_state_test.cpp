#include "based/train/run_state.h"

#include <gtest/gtest.h>

#include "based/core/files.h"
#include "based/models/tensor_view.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace run_state_test {

std::shared_ptr<LanguageModel> model_of_h3() {
  ModelConfig config;
  config.d_model = 8;
  config.vocab_size = 16;
  config.layers = {"h3"};
  config.mlp = "none";
  auto model = make_model(config, 1);
  model->to(torch::kBFloat16);
  return model;
}

// Earlier versions rounded H3's poles to bf16 and had fp32 masters: such a run resumes from the masters.
TEST(RunState, AMasterOfWhatIsKeptWideNowIsThePrecedingWeight) {
  const TemporaryFolder folder;
  const auto model = model_of_h3();
  AdamW optimizer(*model, {});
  RunState state;
  state.run = Config(Config::Table{});
  save_run_state(folder.path(), state, optimizer);
  std::vector<Tensor> kept;
  std::vector<TensorView> views;
  const std::string path = folder.file("optimizer.safetensors"), copy = folder.file("copy");
  std::filesystem::copy(path, copy);
  const SafetensorsFile file(copy);
  views.insert(views.end(), file.tensors().begin(), file.tensors().end());
  std::vector<std::string> names;
  for (const AdamW::Slot& slot : optimizer.slots())
    if (!slot.has_master()) {
      names.push_back("master." + slot.name);
      kept.push_back(slot.parameter.detach() + 0.125);
    }
  ASSERT_EQ(names.size(), 6U) << "log_dt, log_decay, frequency, B, C, D";
  for (size_t i = 0; i < names.size(); ++i) views.push_back(view_of(names[i], kept[i]));
  write_safetensors(path, views);
  state.optimizer_hash.clear();  // those versions recorded none
  write_file_atomic(folder.file("trainer.json"), write_config(state).to_json() + "\n");

  const auto later = model_of_h3();
  AdamW other(*later, {});
  load_optimizer(folder.path(), other);
  size_t at = 0;
  for (const AdamW::Slot& slot : other.slots())
    if (!slot.has_master()) {
      EXPECT_TRUE(slot.parameter.equal(kept[at])) << slot.name;
      ++at;
    }
  EXPECT_GT(at, 0U);
  kept[0] = torch::zeros({3});
  views.back() = view_of("master.layers.0.mixer.diagonal.D", kept[0]);
  write_safetensors(path, views);
  EXPECT_NE(
      message_of<Error>([&] { load_optimizer(folder.path(), other); }).find("another shape or type for master.layers.0.mixer.diagonal.D"),
      std::string::npos);
}

}  // namespace run_state_test
}  // namespace based
