// An engine that launches the next step before it waits for the tokens of this one. Its results must be those of other engines.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/generate/engine.h"
#include "tests/generate/recorded_on_cpu.h"
#include "tests/generate/texts.h"

namespace based {
namespace engine_ahead_test {

// Every device, with a state of fixed size and with one that grows in pages, with steps of all slots and of the decoding ones only.
class EngineAhead : public testing::TestWithParam<std::tuple<torch::DeviceType, const char*, Steps>> {
 protected:
  void SetUp() override {
    if (device() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    if (device() == torch::kCPU && std::get<Steps>(GetParam()) == Steps::fused) recorded_.emplace();
    model_ = distinct_model(device(), std::get<const char*>(GetParam()));
  }
  static torch::DeviceType device() { return std::get<torch::DeviceType>(GetParam()); }

  // `invariant`: the bits of states do not depend on the sequences that were read and stepped together.
  static EngineOptions options(bool ahead, bool invariant = false) {
    EngineOptions options{.slots = 3, .cache_tokens = 10 * cell_tokens(device()), .prefill_tokens = 32, .ahead = ahead};
    options.decode.steps = std::get<Steps>(GetParam());
    options.decode.invariant = invariant;
    return options;
  }
  static void expect_equal(const SequenceState& a, const SequenceState& b) {
    EXPECT_EQ(a.ids, b.ids);
    const auto of_a = a.state.named(), of_b = b.state.named();
    ASSERT_EQ(of_a.size(), of_b.size());
    for (size_t i = 0; i < of_a.size(); ++i) EXPECT_TRUE(torch::equal(of_a[i].value, of_b[i].value)) << of_a[i].name;
  }
  // The state of a sequence of `length` tokens: the last one has been sampled but not read.
  SequenceState state_of(const std::vector<int64_t>& text, const SamplingOptions& sampling, size_t length) {
    Engine alone(*model_, options(false, true));
    const int64_t sequence = alone.add(text, {.sampling = sampling});
    while (alone.text(sequence).size() < length) alone.step();
    return alone.snapshot(sequence);
  }

  std::optional<RecordedOnCpu> recorded_;
  std::shared_ptr<LanguageModel> model_;
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineAhead,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA), testing::Values("based-tiny", "attn-tiny"),
                                          testing::Values(Steps::fused, Steps::plain)),
                         [](const auto& given) {
                           return std::string(std::get<const char*>(given.param)).substr(0, 4) +
                                  (std::get<torch::DeviceType>(given.param) == torch::kCPU ? "_on_cpu" : "_on_cuda") +
                                  (std::get<Steps>(given.param) == Steps::plain ? "_plain" : "_recorded");
                         });

// More sequences than slots, of many lengths; some end at a stop token, and some prompts are read in pieces.
TEST_P(EngineAhead, TokensAndEndsAreThoseOfOneStepAtATime) {
  std::vector<std::map<int64_t, std::vector<int64_t>>> tokens;
  std::vector<std::vector<Finish>> ends;
  for (const bool ahead : {false, true}) {
    Engine engine(*model_, options(ahead, true));
    for (int64_t i = 0; i < 14; ++i) {
      const auto prompt = some_text(1 + 29 * i % 90, i);
      SequenceOptions one{.sampling = kDrawn, .max_tokens = 17 * i % 20};
      one.sampling.seed = i;
      if (i % 3 == 1) one.stop_tokens = {session_text(*model_, prompt, 5, one.sampling).back()};
      engine.add(prompt, one);
    }
    tokens.push_back(tokens_of(engine));
    auto& finish = ends.emplace_back();
    for (int64_t i = 0; i < 14; ++i) finish.push_back(engine.finish(i));
    EXPECT_EQ(engine.free_slots(), 3);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(ends[0], ends[1]);
  EXPECT_EQ(std::count(ends[1].begin(), ends[1].end(), Finish::stop), 4);
}

// Beside a sequence that ends by its length and one that ends at a stop token, both without keep_state.
TEST_P(EngineAhead, StatesThatAreKeptAreThoseAfterTheLastToken) {
  const auto text = some_text(40, 4), other = some_text(9, 77);
  const std::vector<int64_t> drawn = session_text(*model_, text, 12, kDrawn), others = session_text(*model_, other, 4, kDrawn);
  const auto first = std::find(drawn.begin(), drawn.end(), drawn[10]) - drawn.begin() + 1;
  for (const bool by_length : {true, false}) {
    Engine engine(*model_, options(true, true));
    engine.add(other, {.sampling = kDrawn, .max_tokens = 7});
    engine.add(other, {.sampling = kDrawn, .stop_tokens = {others.back()}});
    SequenceOptions kept{.sampling = kDrawn, .keep_state = true};
    if (by_length)
      kept.max_tokens = first;
    else
      kept.stop_tokens = {drawn[10]};
    const int64_t sequence = engine.add(text, kept);
    EXPECT_EQ(tokens_of(engine)[sequence], std::vector<int64_t>(drawn.begin(), drawn.begin() + first));
    EXPECT_EQ(engine.finish(sequence), by_length ? Finish::length : Finish::stop);
    expect_equal(engine.snapshot(sequence), state_of(text, kDrawn, text.size() + static_cast<size_t>(first)));
  }
}

// The calls wait for the step in flight, and the next step() returns its tokens.
TEST_P(EngineAhead, WhatIsAskedForWhileAStepIsInFlightIsExact) {
  const int64_t cell = cell_tokens(device());
  const auto text = some_text(2 * cell - 3, 4), more = some_text(11, 60);  // a cell ends among the sampled tokens
  Engine engine(*model_, options(true, true));
  const int64_t sequence = engine.add(text, {.sampling = kDrawn, .max_tokens = 30});
  const int64_t removed = engine.add(some_text(9, 77), {.sampling = kDrawn}), ended = engine.add(some_text(3, 5), {.sampling = kDrawn});
  auto tokens = tokens_of(engine, cell - 4 + 6)[sequence];
  const auto go_on = [&](Engine& with, int64_t steps) {
    const auto some = tokens_of(with, steps)[sequence];
    tokens.insert(tokens.end(), some.begin(), some.end());
  };
  const SequenceState saved = engine.snapshot(sequence);
  expect_equal(saved, state_of(text, kDrawn, saved.ids.size()));
  engine.remove(removed);
  engine.end(ended);
  go_on(engine, 3);
  const int64_t forked = engine.fork(sequence, {.sampling = kDrawn, .max_tokens = 4, .keep_state = true});
  const std::vector<int64_t> at_fork = engine.text(sequence);
  go_on(engine, 100);
  EXPECT_EQ(tokens, session_text(*model_, text, 30, kDrawn));
  std::vector<int64_t> expected(engine.text(forked));
  EXPECT_EQ(expected.size(), at_fork.size() + 4);
  const std::vector<int64_t> all = engine.text(sequence);
  EXPECT_EQ(expected, std::vector<int64_t>(all.begin(), all.begin() + static_cast<int64_t>(expected.size())));
  expect_equal(engine.snapshot(forked), state_of(text, kDrawn, expected.size()));

  const int64_t extended = engine.add(text, {.sampling = kGreedy, .max_tokens = 25});
  tokens_of(engine, 9);
  engine.extend(extended, more);
  std::vector<int64_t> before = engine.text(extended);
  const auto left = 25 - (static_cast<int64_t>(before.size() - text.size() - more.size()));
  tokens_of(engine);
  const auto& after = engine.text(extended);
  EXPECT_EQ(std::vector<int64_t>(after.begin() + static_cast<int64_t>(before.size()), after.end()), greedy_text(*model_, before, left));
}

// No step goes beyond the last position or the last page.
TEST_P(EngineAhead, LimitsEndTextsWhereTheyEndThemOneStepAtATime) {
  ModelConfig config = model_->config();
  config.max_positions = 48;
  torch::manual_seed(3);
  LanguageModel model(config);
  model.to(device());
  model.eval();
  for (const int64_t cache : {600, 90}) {
    std::vector<std::vector<std::vector<int64_t>>> texts;
    std::vector<std::vector<Finish>> ends;
    for (const bool ahead : {false, true}) {
      EngineOptions with = options(ahead, true);
      with.cache_tokens = cache;
      Engine engine(model, with);
      std::vector<int64_t> sequences;
      for (int64_t i = 0; i < 5; ++i) sequences.push_back(engine.add(some_text(10 + 9 * i, i), {.sampling = kGreedy}));
      tokens_of(engine);
      texts.emplace_back(), ends.emplace_back();
      for (const int64_t one : sequences) texts.back().push_back(engine.text(one)), ends.back().push_back(engine.finish(one));
      EXPECT_EQ(engine.free_slots(), 3);
    }
    EXPECT_EQ(texts[0], texts[1]) << cache;
    EXPECT_EQ(ends[0], ends[1]) << cache;
  }
}

TEST(EngineAheadOnCpu, AStepIsLaunchedBeforeTheTokensOfTheOneBeforeAreLookedAt) {
  Engine* engine = nullptr;
  int64_t sequence = -1;
  std::vector<size_t> drawn_at_launch;
  const RecordedOnCpu recorded([&] {
    if (engine != nullptr) drawn_at_launch.push_back(engine->text(sequence).size() - 20);
  });
  const auto model = distinct_model(torch::kCPU);
  const std::vector<int64_t> text = some_text(20, 3), generated = greedy_text(*model, text, 6);
  int64_t never = 0;
  while (std::find(generated.begin(), generated.end(), never) != generated.end()) ++never;
  for (const auto& [keep, stops] : {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
    SCOPED_TRACE(testing::Message() << keep << " " << stops);
    Engine here(*model, {.slots = 2, .ahead = true});
    SequenceOptions options{.sampling = kGreedy, .max_tokens = 6, .keep_state = keep};
    if (stops) options.stop_tokens = {never};
    sequence = here.add(text, options);
    engine = &here;
    drawn_at_launch.clear();
    for (size_t i = 0; !here.idle(); ++i) EXPECT_EQ(here.step().size(), 1U) << i;
    engine = nullptr;
    // A kept state has not seen a token too many: the step after a token that may be a stop token waits for it.
    const bool waits = keep && stops;
    EXPECT_EQ(drawn_at_launch, waits ? std::vector<size_t>({0, 1, 2, 3, 4, 5}) : std::vector<size_t>({0, 0, 1, 2, 3, 4}));
  }
}

}  // namespace engine_ahead_test
}  // namespace based
