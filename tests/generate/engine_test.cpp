#include "based/generate/engine.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/generate/session.h"

namespace based {
namespace {

std::shared_ptr<LanguageModel> tiny(torch::DeviceType device, const std::string& preset = "based-tiny") {
  torch::manual_seed(5);
  auto model = std::make_shared<LanguageModel>(find_preset(preset));
  // Larger weights than initial ones, so that the most likely token is not a matter of rounding.
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.mul_(4);
  model->to(device);
  model->eval();
  return model;
}

std::vector<int64_t> prompt(int64_t length, int64_t start) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((start + 7 * i) % 257);
  return ids;
}

std::vector<int64_t> by_session(LanguageModel& model, const std::vector<int64_t>& text, int64_t tokens,
                                const SamplingOptions& options = {0}) {
  Session session(model);
  session.append(text);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(session.next(options));
  return ids;
}

std::vector<int64_t> tokens_of(Engine& engine, int64_t slot, int64_t steps) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < steps; ++i) ids.push_back(engine.step()[static_cast<size_t>(slot)]);
  return ids;
}

class EngineOnDevices : public testing::TestWithParam<torch::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, EngineOnDevices, testing::Values(torch::kCPU, torch::kCUDA),
                         [](const auto& given) { return given.param == torch::kCPU ? "cpu" : "cuda"; });

TEST_P(EngineOnDevices, GreedyTextsOfAnyLengthsAreThoseOfSessions) {
  const auto model = tiny(GetParam());
  const std::vector<std::vector<int64_t>> prompts{prompt(1, 3), prompt(70, 11), prompt(2, 200), prompt(9, 50)};
  Engine engine(*model, 5);
  const std::vector<int64_t> slots = engine.join(prompts, SamplingOptions{0});
  std::vector<std::vector<int64_t>> texts(prompts.size());
  for (int step = 0; step < 20; ++step) {
    const std::vector<int64_t>& tokens = engine.step();
    for (size_t i = 0; i < prompts.size(); ++i) texts[i].push_back(tokens[static_cast<size_t>(slots[i])]);
    EXPECT_EQ(tokens[4], -1);
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], by_session(*model, prompts[i], 20)) << i;
}

// Slots with other options and older texts beside each other, so that a penalty or a mark in the wrong row would show.
TEST_P(EngineOnDevices, DrawnAndPenalisedTextsAreThoseOfSessions) {
  const auto model = tiny(GetParam());
  const std::vector<SamplingOptions> options{
      {0, 0, 1, 0, 1.5}, {0.8, 40, 0.95, 0.01, 1.3, 7}, {1, 0, 1, 0, 1, 8}, {1.2, 0, 0.9, 0, 0.7, 9}};
  const std::vector<std::vector<int64_t>> prompts{prompt(60, 3), prompt(12, 11), prompt(2, 200), prompt(33, 50)};
  Engine engine(*model, 4);
  for (int round = 0; round < 2; ++round) {
    std::vector<int64_t> slots;
    for (size_t i = 0; i < prompts.size(); ++i) slots.push_back(engine.join({prompts[i]}, options[(i + round) % 4])[0]);
    std::vector<std::vector<int64_t>> texts(prompts.size());
    for (int step = 0; step < 40; ++step) {
      const std::vector<int64_t>& tokens = engine.step();
      for (size_t i = 0; i < prompts.size(); ++i) texts[i].push_back(tokens[static_cast<size_t>(slots[i])]);
    }
    for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], by_session(*model, prompts[i], 40, options[(i + round) % 4])) << i;
    for (const int64_t slot : slots) engine.leave(slot);
  }
}

TEST_P(EngineOnDevices, TextsJoinAndLeaveWithoutDisturbingOthers) {
  const auto model = tiny(GetParam());
  const SamplingOptions drawn{0.8, 40, 0.95, 0.01, 1, 7};
  Engine alone(*model, 3);
  const int64_t its_slot = alone.join({prompt(30, 5)}, drawn)[0];
  const std::vector<int64_t> expected = tokens_of(alone, its_slot, 24);

  Engine engine(*model, 3);
  const int64_t other = engine.join({prompt(4, 9)}, drawn)[0];
  const int64_t slot = engine.join({prompt(30, 5)}, drawn)[0];
  EXPECT_EQ(engine.free_slots(), 1);
  std::vector<int64_t> text = tokens_of(engine, slot, 8);
  engine.leave(other);
  for (const int64_t id : tokens_of(engine, slot, 8)) text.push_back(id);
  EXPECT_EQ(engine.join({prompt(50, 1)}, SamplingOptions{0})[0], other);
  for (const int64_t id : tokens_of(engine, slot, 8)) text.push_back(id);
  EXPECT_EQ(text, expected);
}

TEST_P(EngineOnDevices, ASlotKeepsNothingOfItsLastText) {
  const auto model = tiny(GetParam());
  Engine engine(*model, 2);
  const int64_t slot = engine.join({prompt(40, 3)}, SamplingOptions{0})[0];
  const std::vector<int64_t> expected = tokens_of(engine, slot, 10);
  engine.leave(slot);
  const int64_t again = engine.join({prompt(90, 8)}, SamplingOptions{1})[0];
  tokens_of(engine, again, 5);
  engine.leave(again);
  EXPECT_EQ(tokens_of(engine, engine.join({prompt(40, 3)}, SamplingOptions{0})[0], 10), expected);
}

TEST(Engine, RefusesWhatItCannotDo) {
  const auto model = tiny(torch::kCPU);
  EXPECT_THROW(Engine(*model, 0), UsageError);
  EXPECT_THROW(Engine(*tiny(torch::kCPU, "attn-tiny"), 2), UsageError);
  Engine engine(*model, 2);
  EXPECT_THROW(engine.join({{}}, {}), Error);
  EXPECT_THROW(engine.join({{257}}, {}), Error);
  EXPECT_THROW(engine.join({{1}, {2}, {3}}, {}), Error);
  EXPECT_THROW(engine.join({{1}}, SamplingOptions{.repetition_penalty = 0}), UsageError);
  EXPECT_EQ(engine.free_slots(), 2);
}

TEST(Engine, TellsOfLogitsThatAreNotFinite) {
  const auto model = tiny(torch::kCPU);
  Engine engine(*model, 2);
  engine.join({{1, 2}}, SamplingOptions{0});
  {
    const torch::NoGradGuard no_grad;
    model->named_parameters()["norm.weight"].fill_(NAN);
  }
  EXPECT_THROW(engine.step(), Error);
}

// The same greedy text from the same weights, in fp32, wherever it is made.
TEST(Generation, CpuAndGpuAgree) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(by_session(*tiny(torch::kCUDA), prompt(100, 4), 200), by_session(*tiny(torch::kCPU), prompt(100, 4), 200));
}

}  // namespace
}  // namespace based
