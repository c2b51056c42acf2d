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

// On every device, with a state of fixed size and with one that grows and lies in pages.
class EngineOnDevices : public testing::TestWithParam<std::tuple<torch::DeviceType, const char*>> {
 protected:
  void SetUp() override {
    if (device() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  static torch::DeviceType device() { return std::get<0>(GetParam()); }
  static std::shared_ptr<LanguageModel> model() { return tiny(device(), std::get<1>(GetParam())); }
};
constexpr int64_t kMaxTokens = 600;  // of the engines' texts, several pages each

INSTANTIATE_TEST_SUITE_P(Devices, EngineOnDevices,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA), testing::Values("based-tiny", "attn-tiny")),
                         [](const auto& given) {
                           return std::string(std::get<1>(given.param)).substr(0, 4) +
                                  (std::get<0>(given.param) == torch::kCPU ? "_on_cpu" : "_on_cuda");
                         });

TEST_P(EngineOnDevices, GreedyTextsOfAnyLengthsAreThoseOfSessions) {
  const auto model = this->model();
  const std::vector<std::vector<int64_t>> prompts{prompt(1, 3), prompt(70, 11), prompt(2, 200), prompt(9, 50)};
  Engine engine(*model, 5, kMaxTokens);
  const std::vector<int64_t> slots = engine.join(prompts, SamplingOptions{0});
  std::vector<std::vector<int64_t>> texts(prompts.size());
  for (int step = 0; step < 20; ++step) {
    const std::vector<int64_t>& tokens = engine.step();
    for (size_t i = 0; i < prompts.size(); ++i) texts[i].push_back(tokens[static_cast<size_t>(slots[i])]);
    EXPECT_EQ(tokens[4], -1);
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(texts[i], by_session(*model, prompts[i], 20)) << i;
}

// Among so many slots that a GPU's steps leave their tokens beside the sums; texts join at different steps.
TEST_P(EngineOnDevices, TextsAmongManySlotsAreThoseOfSessions) {
  const auto model = this->model();
  Engine engine(*model, 300, kMaxTokens);
  const std::vector<std::vector<int64_t>> prompts{prompt(30, 3), prompt(1, 11), prompt(50, 200)};
  std::vector<std::vector<int64_t>> texts(prompts.size());
  std::vector<int64_t> slots;
  for (size_t step = 0; step < 45; ++step) {
    if (step % 5 == 0 && slots.size() < prompts.size()) slots.push_back(engine.join({prompts[slots.size()]}, SamplingOptions{0})[0]);
    const std::vector<int64_t>& tokens = engine.step();
    for (size_t i = 0; i < slots.size(); ++i) texts[i].push_back(tokens[static_cast<size_t>(slots[i])]);
  }
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(texts[i], by_session(*model, prompts[i], static_cast<int64_t>(texts[i].size()))) << i;
}

// Slots with other options and older texts beside each other, so that a penalty or a mark in the wrong row would show.
TEST_P(EngineOnDevices, DrawnAndPenalisedTextsAreThoseOfSessions) {
  const auto model = this->model();
  const std::vector<SamplingOptions> options{
      {0, 0, 1, 0, 1.5}, {0.8, 40, 0.95, 0.01, 1.3, 7}, {1, 0, 1, 0, 1, 8}, {1.2, 0, 0.9, 0, 0.7, 9}};
  const std::vector<std::vector<int64_t>> prompts{prompt(60, 3), prompt(12, 11), prompt(2, 200), prompt(33, 50)};
  Engine engine(*model, 4, kMaxTokens);
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
  const auto model = this->model();
  const SamplingOptions drawn{0.8, 40, 0.95, 0.01, 1, 7};
  Engine alone(*model, 3, kMaxTokens);
  const int64_t its_slot = alone.join({prompt(30, 5)}, drawn)[0];
  const std::vector<int64_t> expected = tokens_of(alone, its_slot, 24);

  Engine engine(*model, 3, kMaxTokens);
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
  const auto model = this->model();
  Engine engine(*model, 2, kMaxTokens);
  const int64_t slot = engine.join({prompt(40, 3)}, SamplingOptions{0})[0];
  const std::vector<int64_t> expected = tokens_of(engine, slot, 10);
  engine.leave(slot);
  const int64_t again = engine.join({prompt(90, 8)}, SamplingOptions{1})[0];
  tokens_of(engine, again, 5);
  engine.leave(again);
  EXPECT_EQ(tokens_of(engine, engine.join({prompt(40, 3)}, SamplingOptions{0})[0], 10), expected);
}

// Texts of many lengths through two slots of a small pool: pages go from text to text, and no text sees another's keys.
TEST_P(EngineOnDevices, PagesGoFromTextToText) {
  const auto model = this->model();
  Engine engine(*model, 2, 300);
  const int64_t bytes = engine.state_bytes();
  for (int64_t round = 0; round < 6; ++round) {
    const auto a = prompt(20 + 37 * round % 150, round), b = prompt(1 + 61 * round % 90, 3 * round);
    const int64_t slot_a = engine.join({a}, SamplingOptions{0})[0], slot_b = engine.join({b}, SamplingOptions{0})[0];
    std::vector<int64_t> text_a, text_b;
    for (int step = 0; step < 70 && step < 10 + 20 * round; ++step) {
      const std::vector<int64_t>& tokens = engine.step();
      if (step == 5) engine.leave(slot_b);
      if (step <= 5) text_b.push_back(tokens[static_cast<size_t>(slot_b)]);
      text_a.push_back(tokens[static_cast<size_t>(slot_a)]);
    }
    EXPECT_EQ(text_a, by_session(*model, a, static_cast<int64_t>(text_a.size()))) << round;
    EXPECT_EQ(text_b, by_session(*model, b, 6)) << round;
    engine.leave(slot_a);
  }
  EXPECT_EQ(engine.state_bytes(), bytes);
}

TEST(Engine, RefusesWhatItCannotDo) {
  const auto model = tiny(torch::kCPU);
  EXPECT_THROW(Engine(*model, 0), UsageError);
  Engine engine(*model, 2);
  EXPECT_THROW(engine.join({{}}, {}), Error);
  EXPECT_THROW(engine.join({{257}}, {}), Error);
  EXPECT_THROW(engine.join({{1}, {2}, {3}}, {}), Error);
  EXPECT_THROW(engine.join({{1}}, SamplingOptions{.repetition_penalty = 0}), UsageError);
  EXPECT_EQ(engine.free_slots(), 2);
}

std::string usage_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Engine, ATextThatOutgrowsMaxTokensIsAnErrorThatNamesIt) {
  const auto model = tiny(torch::kCPU, "attn-tiny");
  EXPECT_EQ(usage_error_of([&] { Engine(*model, 2); }),
            "the model's state grows with the text: max_tokens must say how many tokens all texts may have, got 0");
  Engine engine(*model, 3, 100);
  const auto text = prompt(60, 4);
  const int64_t slot = engine.join({text}, SamplingOptions{0})[0], other = engine.join({prompt(30, 7)}, SamplingOptions{0})[0];
  EXPECT_EQ(usage_error_of([&] { engine.join({prompt(13, 1)}, {}); }),
            "the prompts have 13 tokens, and of the engine's max_tokens 12 are free: give a larger max_tokens, or let texts leave first");
  std::vector<int64_t> tokens = tokens_of(engine, slot, 6);  // 59 + 29 keys, and two a step
  EXPECT_EQ(usage_error_of([&] { engine.step(); }),
            "the engine's texts have max_tokens tokens, and 2 more do not fit: give a larger max_tokens, or let a text leave");
  EXPECT_EQ(engine.free_slots(), 1);
  engine.leave(other);  // what is left goes on as if nothing had happened
  for (const int64_t id : tokens_of(engine, slot, 35)) tokens.push_back(id);
  EXPECT_EQ(tokens, by_session(*model, text, 41));
  EXPECT_NE(usage_error_of([&] { engine.step(); }), "no error");
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
