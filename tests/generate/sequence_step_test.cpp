// Steps of several tokens of one sequence: tokens, log-probabilities and states of steps of 1 to 8 tokens are the same, bit for bit. So are
// those of recorded steps and of plain ones, and, where no layers are fused, those of fused steps.
#include "based/generate/sequence_step.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/generate/decode_step.h"
#include "tests/generate/texts.h"

namespace based {
namespace sequence_step_test {

constexpr int64_t kTokens = 24;

struct Kind {
  const char* preset;
  torch::Dtype dtype;
  torch::DeviceType device;
};

void PrintTo(const Kind& kind, std::ostream* to) { *to << kind.preset; }

class SequenceSteps : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().device == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
};

bool is_large_based(const Kind& kind) { return kind.preset == std::string("based-360m") || kind.preset == std::string("based-1.4b"); }

// A tiny preset, or some layers of a large one with a small vocabulary.
std::shared_ptr<LanguageModel> model_of(const Kind& kind) {
  ModelConfig config = find_preset(kind.preset);
  if (is_large_based(kind)) config.layers = {"conv", "linear", "window"};
  config.layers.resize(std::min<size_t>(config.layers.size(), 3));
  config.vocab_size = std::min<int64_t>(config.vocab_size, 1000);
  torch::manual_seed(11);
  auto model = std::make_shared<LanguageModel>(config);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) parameter.mul_(2);
  model->to(kind.device, kind.dtype);
  model->eval();
  return model;
}

struct Made {
  std::vector<int64_t> tokens;
  std::vector<float> log_probabilities;
  ModelState state;
};

void begin(DecodeStep& step) {
  const std::vector<int64_t> prompt{5};
  step.set_sampling({0}, {SamplingOptions{1, 0, 1, 0, 1.1, 3}});
  step.load_last_tokens({0}, {&prompt});
}

// Draws tokens by the steps of an engine without drafts.
Made make_without_drafts(LanguageModel& model, Steps steps, int64_t count) {
  ModelState state = model.make_state(1);
  DecodeStep step(model, state, {.steps = steps, .log_probabilities = true});
  begin(step);
  Made made;
  for (int64_t i = 0; i < count; ++i) {
    step.run({0});
    step.begin_readback();
    const DecodeStep::Readback drawn = step.finish_readback();
    made.tokens.push_back(drawn.tokens[0]), made.log_probabilities.push_back(drawn.log_probabilities[0]);
  }
  made.state = state.extract(0);
  return made;
}

void expect_same(const Made& made, const Made& expected, const std::string& where) {
  EXPECT_EQ(made.tokens, expected.tokens) << where;
  EXPECT_EQ(made.log_probabilities, expected.log_probabilities) << where;
  const auto named = made.state.named(), wanted = expected.state.named();
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(wanted[i].grows || torch::equal(named[i].value, wanted[i].value)) << where << ": " << wanted[i].name;
}

// Draws `count` tokens by steps of `tokens` tokens. The drafts are those of `text`; each `wrong`-th is another token, 0: none is.
Made make(LanguageModel& model, Steps steps, int64_t tokens, const std::vector<int64_t>& text, int64_t wrong, int64_t count = kTokens) {
  ModelState state = model.make_state(1);
  DecodeStep step(model, state, {.steps = steps, .log_probabilities = true, .fixed_rows = true});
  begin(step);
  Made made;
  while (static_cast<int64_t>(made.tokens.size()) < count) {
    DecodeStep::DraftedSlot slot{.slot = 0};
    const auto begin = static_cast<int64_t>(made.tokens.size());
    for (int64_t at = begin; at < std::min(begin + tokens - 1, count - 1); ++at) {
      const int64_t right = text[static_cast<size_t>(at)];
      slot.drafts.push_back(wrong > 0 && at % wrong == 0 ? (right + 1) % model.config().vocab_size : right);
    }
    const DecodeStep::DrawnTokens drawn = step.run_drafts({slot}).at(0);
    made.tokens.insert(made.tokens.end(), drawn.tokens.begin(), drawn.tokens.end());
    made.log_probabilities.insert(made.log_probabilities.end(), drawn.log_probabilities.begin(), drawn.log_probabilities.end());
  }
  made.state = state.extract(0);
  return made;
}

TEST_P(SequenceSteps, HaveTheSameBitsForEveryNumberOfTokens) {
  const torch::InferenceMode inference;
  const auto model = model_of(GetParam());
  const Made plain = make(*model, Steps::plain, 1, {}, 0);
  ASSERT_EQ(plain.tokens.size(), static_cast<size_t>(kTokens));
  // A growing state without pages moves, which a recording does not allow.
  const std::vector<Steps> all = plain.state.grows() || GetParam().device == torch::kCPU
                                     ? std::vector{Steps::plain}
                                     : std::vector{Steps::plain, Steps::recorded, Steps::fused};
  for (const Steps steps : all) {
    const bool fuses_layers = steps == Steps::fused && GetParam().dtype == torch::kBFloat16;
    const Made expected = fuses_layers ? make(*model, steps, 1, {}, 0) : plain;
    ASSERT_EQ(expected.tokens.size(), static_cast<size_t>(kTokens));
    for (int64_t tokens = 1; tokens <= SequenceStep::kRows; ++tokens) {
      for (const int64_t wrong : {0, 3}) {
        const Made made = make(*model, steps, tokens, expected.tokens, wrong);
        const std::string where =
            std::to_string(tokens) + " tokens, wrong " + std::to_string(wrong) + ", steps " + std::to_string(static_cast<int>(steps));
        expect_same(made, expected, where);
      }
    }
  }
}

// Where one kernel computes a whole step, steps of several tokens have the bits of steps without drafts.
TEST_P(SequenceSteps, OfOneProgramHaveTheBitsOfStepsWithoutDrafts) {
  const torch::InferenceMode inference;
  const Kind kind = GetParam();
  const auto model = model_of(kind);
  ModelState state = model->make_state(1);
  const bool is_cpu = kind.device == torch::kCPU, expected = is_cpu || (is_large_based(kind) && kind.dtype == torch::kBFloat16);
  if (state.grows()) GTEST_SKIP() << "steps of a growing state without pages are not recorded";
  const DecodeStep step(*model, state, {.fixed_rows = true});
  EXPECT_EQ(step.drafts_keep_bits(), expected);
  if (is_cpu || !expected) return;
  constexpr int64_t kCount = 100;  // more than a window's keys
  const Made plain = make_without_drafts(*model, Steps::fused, kCount);
  for (int64_t tokens = 1; tokens <= SequenceStep::kRows; ++tokens)
    for (const int64_t wrong : {0, 3})
      expect_same(make(*model, Steps::fused, tokens, plain.tokens, wrong, kCount), plain,
                  std::to_string(tokens) + " tokens, wrong " + std::to_string(wrong));
}

// Fused layers round in other places: the states after a token are nearly those of plain steps.
TEST_P(SequenceSteps, AreNearlyTheSameWithFusedLayers) {
  const torch::InferenceMode inference;
  const auto model = model_of(GetParam());
  const Made plain = make(*model, Steps::plain, 1, {}, 0, 1);
  if (plain.state.grows()) GTEST_SKIP() << "a growing state without pages moves, which a recording does not allow";
  const Made fused = make(*model, Steps::fused, 1, {}, 0, 1);
  const auto wanted = plain.state.named(), named = fused.state.named();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const torch::Tensor expected = wanted[i].value.to(torch::kDouble), found = named[i].value.to(torch::kDouble);
    EXPECT_LE((found - expected).norm().item<double>(), 5e-2 * expected.norm().item<double>()) << wanted[i].name;
  }
}

std::vector<Kind> kinds(torch::DeviceType device, const std::vector<const char*>& presets) {
  std::vector<Kind> all;
  for (const char* preset : presets)
    for (const torch::Dtype dtype : {torch::kFloat32, torch::kBFloat16}) all.push_back({preset, dtype, device});
  return all;
}

std::string name_of(const testing::TestParamInfo<Kind>& given) {
  std::string name = std::string(given.param.preset) + (given.param.dtype == torch::kFloat32 ? "_fp32" : "_bf16");
  for (const char mark : {'-', '.'}) std::replace(name.begin(), name.end(), mark, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cpu, SequenceSteps, testing::ValuesIn(kinds(torch::kCPU, {"based-tiny", "attn-tiny", "mamba-tiny"})), name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, SequenceSteps,
                         testing::ValuesIn(kinds(torch::kCUDA,
                                                 {"based-tiny", "attn-tiny", "mamba-tiny", "based-360m", "based-1.4b", "mamba-360m",
                                                  "gla-360m", "rwkv5-360m", "h3-360m", "hyena-360m", "attn-360m"})),
                         name_of);

}  // namespace sequence_step_test
}  // namespace based
