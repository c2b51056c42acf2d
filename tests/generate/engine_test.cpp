#include "based/generate/engine.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/generate/session.h"
#include "based/models/quantised.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based {
namespace engine_test {

// Every device, with a state of fixed size and with one that grows in pages.
class EngineOnDevices : public testing::TestWithParam<std::tuple<torch::DeviceType, const char*>> {
 protected:
  void SetUp() override {
    if (device() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }
  static torch::DeviceType device() { return std::get<0>(GetParam()); }
  static std::shared_ptr<LanguageModel> model() { return distinct_model(device(), std::get<1>(GetParam())); }
};
constexpr int64_t kCache = 600;  // tokens; several pages for each sequence

INSTANTIATE_TEST_SUITE_P(Devices, EngineOnDevices,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA), testing::Values("based-tiny", "attn-tiny")),
                         [](const auto& given) {
                           return std::string(std::get<1>(given.param)).substr(0, 4) +
                                  (std::get<0>(given.param) == torch::kCPU ? "_on_cpu" : "_on_cuda");
                         });

TEST_P(EngineOnDevices, GreedyTextsOfAnyLengthsAreThoseOfTheModelAlone) {
  const auto model = this->model();
  const std::vector<std::vector<int64_t>> prompts{some_text(1, 3), some_text(70, 11), some_text(2, 200), some_text(9, 50)};
  Engine engine(*model, {.slots = 5, .cache_tokens = kCache});
  std::vector<int64_t> sequences;
  for (const auto& prompt : prompts) sequences.push_back(engine.add(prompt, {.sampling = kGreedy, .max_tokens = 20}));
  auto tokens = tokens_of(engine);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.free_slots(), 5);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(tokens[sequences[i]], greedy_text(*model, prompts[i], 20)) << i;
    EXPECT_EQ(engine.finish(sequences[i]), Finish::length);
  }
}

// More sequences than slots, of different lengths: a free slot is reused at once.
TEST_P(EngineOnDevices, SequencesWaitForSlotsAndGetThemInOrder) {
  const auto model = this->model();
  Engine engine(*model, {.slots = 3, .cache_tokens = kCache});
  std::map<int64_t, std::vector<int64_t>> expected;
  for (int64_t i = 0; i < 11; ++i) {
    const auto prompt = some_text(1 + 13 * i % 40, i);
    const int64_t tokens = 3 + 7 * i % 12;
    expected[engine.add(prompt, {.sampling = kGreedy, .max_tokens = tokens})] = greedy_text(*model, prompt, tokens);
  }
  EXPECT_EQ(tokens_of(engine), expected);
}

// With so many slots, a GPU's steps leave tokens pending. The sequences are added at different steps.
TEST_P(EngineOnDevices, TextsAmongManySlotsAreThoseOfTheModelAlone) {
  const auto model = this->model();
  Engine engine(*model, {.slots = 300, .cache_tokens = kCache});
  const std::vector<std::vector<int64_t>> prompts{some_text(30, 3), some_text(1, 11), some_text(50, 200)};
  std::map<int64_t, std::vector<int64_t>> tokens, expected;
  for (const auto& prompt : prompts) {
    expected[engine.add(prompt, {.sampling = kGreedy, .max_tokens = 40})] = greedy_text(*model, prompt, 40);
    for (auto& [sequence, some] : tokens_of(engine, 5)) tokens[sequence].insert(tokens[sequence].end(), some.begin(), some.end());
  }
  for (auto& [sequence, some] : tokens_of(engine)) tokens[sequence].insert(tokens[sequence].end(), some.begin(), some.end());
  EXPECT_EQ(tokens, expected);
}

// Slots with different options, reused by a second round of sequences: a penalty or a seen mark in the wrong row would change the tokens.
TEST_P(EngineOnDevices, DrawnAndPenalisedTextsAreThoseOfSessions) {
  const auto model = this->model();
  const std::vector<SamplingOptions> options{{0, 0, 1, 0, 1.5}, kDrawn, {1, 0, 1, 0, 1, 8}, {1.2, 0, 0.9, 0, 0.7, 9}};
  const std::vector<std::vector<int64_t>> prompts{some_text(60, 3), some_text(12, 11), some_text(2, 200), some_text(33, 50)};
  Engine engine(*model, {.slots = 4, .cache_tokens = kCache});
  for (size_t round = 0; round < 2; ++round) {
    std::map<int64_t, std::vector<int64_t>> expected;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const SamplingOptions& sampling = options[(i + round) % 4];
      expected[engine.add(prompts[i], {.sampling = sampling, .max_tokens = 40})] = session_text(*model, prompts[i], 40, sampling);
    }
    EXPECT_EQ(tokens_of(engine), expected) << round;
  }
}

TEST_P(EngineOnDevices, TextsComeAndGoWithoutDisturbingOthers) {
  const auto model = this->model();
  const SequenceOptions drawn{.sampling = kDrawn, .max_tokens = 24};
  Engine alone(*model, {.slots = 3, .cache_tokens = kCache});
  const int64_t its_own = alone.add(some_text(30, 5), drawn);
  const std::vector<int64_t> expected = tokens_of(alone)[its_own];

  Engine engine(*model, {.slots = 3, .cache_tokens = kCache});
  const int64_t other = engine.add(some_text(4, 9), drawn);
  const int64_t sequence = engine.add(some_text(30, 5), drawn);
  std::vector<int64_t> text = tokens_of(engine, 8)[sequence];
  engine.remove(other);
  EXPECT_EQ(engine.free_slots(), 2);
  engine.add(some_text(50, 1), {.sampling = kGreedy});
  const auto rest = tokens_of(engine, 16);
  text.insert(text.end(), rest.at(sequence).begin(), rest.at(sequence).end());
  EXPECT_EQ(text, expected);
}

// Sequences of many lengths use two slots of a small pool in turn. Pages are reused, and no sequence reads the keys of another.
TEST_P(EngineOnDevices, SlotsAndPagesKeepNothingOfTheirLastText) {
  const auto model = this->model();
  Engine engine(*model, {.slots = 2, .cache_tokens = 300});
  const int64_t bytes = engine.state_bytes();
  for (int64_t round = 0; round < 6; ++round) {
    const auto a = some_text(20 + 37 * round % 150, round), b = some_text(1 + 61 * round % 90, 3 * round);
    const int64_t tokens = std::min<int64_t>(70, 10 + 20 * round);
    const int64_t of_a = engine.add(a, {.sampling = kGreedy, .max_tokens = tokens});
    const int64_t of_b = engine.add(b, {.sampling = kGreedy, .max_tokens = 6});
    auto texts = tokens_of(engine);
    EXPECT_EQ(texts[of_a], greedy_text(*model, a, tokens)) << round;
    EXPECT_EQ(texts[of_b], greedy_text(*model, b, 6)) << round;
    engine.remove(of_a), engine.remove(of_b);
  }
  EXPECT_EQ(engine.state_bytes(), bytes);
}

// Long prompts are read in pieces between the steps of other sequences, which continue.
TEST_P(EngineOnDevices, LongPromptsAreReadInPiecesBetweenTheStepsOfOthers) {
  const auto model = this->model();
  Engine engine(*model, {.slots = 3, .cache_tokens = kCache, .prefill_tokens = 32});
  const auto first = some_text(20, 3), first_long = some_text(150, 8), second_long = some_text(99, 70);
  const int64_t going_on = engine.add(first, {.sampling = kGreedy, .max_tokens = 30});
  std::map<int64_t, std::vector<int64_t>> expected{{going_on, greedy_text(*model, first, 30)}};
  auto tokens = tokens_of(engine, 1);
  expected[engine.add(first_long, {.sampling = kGreedy, .max_tokens = 9})] = greedy_text(*model, first_long, 9);
  expected[engine.add(second_long, {.sampling = kGreedy, .max_tokens = 9})] = greedy_text(*model, second_long, 9);
  for (int i = 0; i < 4; ++i) {  // 149 tokens are five pieces of at most 32
    const auto& drawn = engine.step();
    ASSERT_EQ(drawn.size(), 1U) << i;
    tokens[going_on].push_back(drawn[0].token);
  }
  for (auto& [sequence, some] : tokens_of(engine)) tokens[sequence].insert(tokens[sequence].end(), some.begin(), some.end());
  EXPECT_EQ(tokens, expected);
}

// After `tokens` tokens a sequence is saved while others are decoding, forked, and restored in another engine: all three get the same
// tokens and bits of state.
void expect_snapshot_goes_on(LanguageModel& model, const EngineOptions& options, int64_t tokens) {
  const TemporaryFolder folder;
  Engine engine(model, options), other(model, options);
  engine.add(some_text(40, 90), {.sampling = kGreedy});
  const int64_t sequence = engine.add(some_text(70, 4), {.sampling = kDrawn, .max_tokens = tokens + 33, .keep_state = true});
  tokens_of(engine, tokens);
  const SequenceState saved = engine.snapshot(sequence);
  EXPECT_EQ(saved.ids, engine.text(sequence));
  EXPECT_EQ(saved.state.position()[0].item<int64_t>(), 70 + tokens - 1);
  save_sequence(folder.file("a"), saved, "00112233445566778899aabbccddeeff");
  const int64_t forked = engine.fork(sequence, {.sampling = kDrawn, .max_tokens = 33, .keep_state = true});
  const int64_t restored = other.add(load_sequence(folder.file("a"), model, "00112233445566778899aabbccddeeff"),
                                     {.sampling = kDrawn, .max_tokens = 33, .keep_state = true});
  auto here = tokens_of(engine, 40), there = tokens_of(other);
  EXPECT_EQ(here[sequence].size(), 33U);
  EXPECT_EQ(here[forked], here[sequence]);
  EXPECT_EQ(there[restored], here[sequence]);
  const SequenceState a = engine.snapshot(sequence), b = engine.snapshot(forked), c = other.snapshot(restored);
  EXPECT_EQ(a.ids, c.ids);
  const auto of_a = a.state.named(), of_b = b.state.named(), of_c = c.state.named();
  ASSERT_EQ(of_a.size(), of_c.size());
  for (size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_TRUE(torch::equal(of_a[i].value, of_b[i].value)) << of_a[i].name;
    EXPECT_TRUE(torch::equal(of_a[i].value, of_c[i].value)) << of_a[i].name;
  }
}

TEST_P(EngineOnDevices, ASnapshotGoesOnAsTheSequenceItself) {
  const auto model = this->model();
  for (const int64_t slots : {4, 200})  // 200: a GPU's steps leave tokens pending
    expect_snapshot_goes_on(*model, {.slots = slots, .cache_tokens = 900}, 17);
}

// In bf16 a GPU's steps read rounded states from the twelfth token on, also where no token is pending, as after the twelfth itself. They
// read the last two inputs of convolutions beside the state.
TEST(Engine, ASnapshotOfRoundedStatesGoesOnAsTheSequenceItself) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const auto model = distinct_model(torch::kCUDA, "based-demo");
  model->to(torch::kBFloat16);
  for (const int64_t tokens : {1, 2, 5, 12, 13, 24, 29}) {
    SCOPED_TRACE(tokens);
    expect_snapshot_goes_on(*model, {.slots = 200}, tokens);
  }
}

// Snapshots of all engines have the same tensors: pages and pending tokens are converted to the canonical form.
TEST_P(EngineOnDevices, SnapshotsHaveOneCanonicalForm) {
  const auto model = this->model();
  Engine engine(*model, {.slots = 200, .cache_tokens = 900}), alone(*model, {});
  const auto text = some_text(70, 4);
  const int64_t a = engine.add(text, {.sampling = kGreedy}), b = alone.add(text, {.sampling = kGreedy});
  tokens_of(engine, 17), tokens_of(alone, 17);
  const SequenceState of_many = engine.snapshot(a), of_one = alone.snapshot(b);
  EXPECT_EQ(of_many.ids, of_one.ids);
  const auto many = of_many.state.named(), one = of_one.state.named();
  ASSERT_EQ(many.size(), one.size());
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_EQ(many[i].name, one[i].name);
    ASSERT_EQ(many[i].value.sizes(), one[i].value.sizes()) << many[i].name;
    EXPECT_TRUE(torch::allclose(many[i].value, one[i].value, 1e-3, 1e-4)) << many[i].name;
  }
}

TEST_P(EngineOnDevices, MoreTextBehindASequenceIsReadBeforeItGoesOn) {
  const auto model = this->model();
  const auto first = some_text(12, 3), more = some_text(90, 60);
  Engine engine(*model, {.slots = 2, .cache_tokens = kCache, .prefill_tokens = 32});
  engine.add(some_text(5, 8), {.sampling = kGreedy});
  const int64_t sequence = engine.add(first, {.sampling = kGreedy, .max_tokens = 25});
  tokens_of(engine, 10);
  std::vector<int64_t> text = engine.text(sequence);
  EXPECT_EQ(text.size(), 22U);
  engine.extend(sequence, more);
  text.insert(text.end(), more.begin(), more.end());
  EXPECT_EQ(tokens_of(engine, 40)[sequence], greedy_text(*model, text, 15));
}

// The next step is launched before the tokens of this one are returned.
TEST_P(EngineOnDevices, StepsAheadGiveTheSameTokens) {
  const auto model = this->model();
  Engine engine(*model, {.slots = 3, .cache_tokens = kCache, .max_idle_slot_steps = 2, .ahead = true});
  std::map<int64_t, std::vector<int64_t>> expected;
  for (int64_t i = 0; i < 11; ++i) {
    const auto prompt = some_text(1 + 13 * i % 40, i);
    const int64_t tokens = 3 + 7 * i % 12;
    expected[engine.add(prompt, {.sampling = kGreedy, .max_tokens = tokens})] = greedy_text(*model, prompt, tokens);
  }
  EXPECT_EQ(tokens_of(engine), expected);

  // Sequences are saved, ended and removed while a step is in flight.
  const auto text = some_text(20, 9);
  const int64_t sequence = engine.add(text, {.sampling = kGreedy, .max_tokens = 30});
  const int64_t removed = engine.add(some_text(7, 5), {.sampling = kGreedy}), ended = engine.add(some_text(9, 5), {.sampling = kGreedy});
  auto tokens = tokens_of(engine, 4);
  const SequenceState saved = engine.snapshot(sequence);
  EXPECT_EQ(saved.ids, engine.text(sequence));
  EXPECT_EQ(saved.state.position()[0].item<int64_t>() + 1, static_cast<int64_t>(saved.ids.size()));
  engine.remove(removed);
  engine.end(ended);
  const int64_t extended = engine.add(saved, {.sampling = kGreedy, .max_tokens = 5});
  auto rest = tokens_of(engine);
  tokens[sequence].insert(tokens[sequence].end(), rest[sequence].begin(), rest[sequence].end());
  EXPECT_EQ(tokens[sequence], greedy_text(*model, text, 30));
  EXPECT_EQ(rest[extended], greedy_text(*model, saved.ids, 5));
  EXPECT_EQ(engine.free_slots(), 3);
}

// A sequence that keeps its state keeps that of its end, whether it ends by its limit or by a stop token: no later step changes it, nor
// does one of all slots.
TEST_P(EngineOnDevices, StepsAheadKeepTheStatesOfSequencesThatEnd) {
  const auto model = this->model();
  const auto text = some_text(20, 3);
  const std::vector<int64_t> expected = greedy_text(*model, text, 12);
  for (const bool stops : {false, true}) {
    SCOPED_TRACE(stops);
    Engine engine(*model, {.slots = 2, .cache_tokens = kCache, .ahead = true});
    SequenceOptions options{.sampling = kGreedy, .max_tokens = 12, .keep_state = true};
    if (stops) options.stop_tokens = {expected[8]};
    const int64_t sequence = engine.add(text, options), other = engine.add(some_text(7, 5), {.sampling = kGreedy, .max_tokens = 20});
    auto tokens = tokens_of(engine);
    EXPECT_EQ(tokens[other], greedy_text(*model, some_text(7, 5), 20));
    const SequenceState state = engine.take_state(sequence);
    EXPECT_EQ(state.seen() + 1, static_cast<int64_t>(state.ids.size()));
    EXPECT_TRUE(std::equal(state.ids.begin() + 20, state.ids.end(), expected.begin()));
    EXPECT_EQ(tokens[sequence].size() == expected.size(), !stops);
    const int64_t continued = engine.add(state, {.sampling = kGreedy, .max_tokens = 5});
    EXPECT_EQ(tokens_of(engine)[continued], greedy_text(*model, state.ids, 5));
  }
}

// Prompts of different lengths that are only read; one of them keeps no state. More than one step, since there are fewer slots than
// prompts.
TEST_P(EngineOnDevices, JointStatesAreThoseOfEachSequence) {
  const auto model = this->model();
  const std::vector<std::vector<int64_t>> prompts{some_text(20, 3), some_text(41, 5), some_text(2, 7), some_text(63, 11),
                                                  some_text(35, 13)};
  Engine together(*model, {.slots = 4, .cache_tokens = kCache, .joint_states = true}), apart(*model, {.slots = 4, .cache_tokens = kCache});
  std::vector<std::pair<int64_t, int64_t>> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const SequenceOptions options{.max_tokens = 0, .keep_state = i != 2};
    sequences.emplace_back(together.add(prompts[i], options), apart.add(prompts[i], options));
  }
  tokens_of(together), tokens_of(apart);
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    if (i == 2) {
      EXPECT_THROW(together.take_state(sequences[i].first), Error);
      continue;
    }
    const SequenceState joint = together.take_state(sequences[i].first), own = apart.take_state(sequences[i].second);
    EXPECT_EQ(joint.ids, own.ids);
    const auto named = joint.state.named(), expected = own.state.named();
    ASSERT_EQ(named.size(), expected.size());
    for (size_t t = 0; t < named.size(); ++t) EXPECT_TRUE(torch::equal(named[t].value, expected[t].value)) << named[t].name;
    const int64_t continued = together.add(joint, {.sampling = kGreedy, .max_tokens = 5});
    EXPECT_EQ(tokens_of(together)[continued], greedy_text(*model, prompts[i], 5));
  }
}

// A state that is not finite, beside a sequence that continues.
TEST_P(EngineOnDevices, OneThatIsNotFiniteEndsAlone) {
  const auto model = this->model();
  const auto text = some_text(20, 3);
  Engine engine(*model, {.slots = 3, .cache_tokens = kCache});
  const int64_t right = engine.add(text, {.sampling = kGreedy, .max_tokens = 12, .keep_state = true});
  tokens_of(engine, 2);
  SequenceState wrong = engine.snapshot(right);
  const torch::InferenceMode inference;
  for (auto& layer : wrong.state.layers())
    for (auto& tensor : layer.tensors())
      if (torch::isFloatingType(tensor.value.scalar_type())) tensor.value.fill_(NAN);
  const int64_t broken = engine.add(wrong, {.sampling = kGreedy, .max_tokens = 12});
  EXPECT_EQ(tokens_of(engine)[right].size(), 10U);
  EXPECT_EQ(engine.finish(broken), Finish::not_finite);
  EXPECT_EQ(engine.text(broken), wrong.ids);
  EXPECT_EQ(engine.finish(right), Finish::length);
  const std::vector<int64_t> expected = greedy_text(*model, text, 12), all = engine.text(right);
  EXPECT_EQ(std::vector<int64_t>(all.begin() + 20, all.end()), expected);
}

TEST_P(EngineOnDevices, LogProbabilitiesAreThoseOfTheModel) {
  const auto model = this->model();
  const auto text = some_text(9, 3);
  Engine engine(*model, {.slots = 3, .cache_tokens = kCache, .decode = {.log_probabilities = true}});
  engine.add(some_text(40, 8), {.sampling = kGreedy});
  const int64_t sequence = engine.add(text, {.sampling = kDrawn, .max_tokens = 20});
  std::vector<float> given;
  for (int i = 0; i < 20; ++i)
    for (const auto& drawn : engine.step())
      if (drawn.sequence == sequence) given.push_back(drawn.log_probability);
  ASSERT_EQ(given.size(), 20U);
  const torch::InferenceMode inference;
  const torch::Tensor ids = torch::tensor(engine.text(sequence)).to(model->device());
  const torch::Tensor hidden = model->forward(ids.narrow(0, 0, 28), Sequences::equal(1, 28, model->device()));
  const torch::Tensor logits = model->logits(hidden).narrow(1, 0, model->config().vocab_size).log_softmax(1);
  const torch::Tensor expected = logits.narrow(0, 8, 20).gather(1, ids.narrow(0, 9, 20).unsqueeze(1)).squeeze(1).cpu();
  EXPECT_TRUE(torch::allclose(torch::tensor(given), expected, 1e-3, 1e-3)) << torch::tensor(given) << expected;
}

// Greedy tokens of plain steps and of fused ones agree in fp32.
TEST_P(EngineOnDevices, PlainStepsGiveTheTokensOfRecordedOnes) {
  const auto model = this->model();
  const auto text = some_text(33, 6);
  for (const Steps steps : {Steps::fused, Steps::plain}) {
    Engine engine(*model, {.slots = 2, .cache_tokens = kCache, .decode = {.steps = steps}});
    const int64_t sequence = engine.add(text, {.sampling = kGreedy, .max_tokens = 60});
    EXPECT_EQ(tokens_of(engine)[sequence], greedy_text(*model, text, 60));
  }
}

// The sequence runs alone in a small engine, and last of many in a large one, in a slot that others have used and with its prompt read in
// pieces.
TEST_P(EngineOnDevices, InvariantBitsDependOnTheTextAlone) {
  const auto model = this->model();
  const auto text = some_text(75, 6);
  std::vector<std::vector<float>> log_probabilities;
  const auto state_after = [&](Engine& engine) {
    const int64_t sequence = engine.add(text, {.sampling = kDrawn, .max_tokens = 30, .keep_state = true});
    auto& kept = log_probabilities.emplace_back();
    while (!engine.idle())
      for (const Engine::Output& drawn : engine.step())
        if (drawn.sequence == sequence) kept.push_back(drawn.log_probability);
    return engine.snapshot(sequence);
  };
  for (const Steps steps : {Steps::fused, Steps::plain}) {
    const DecodeOptions invariant{.steps = steps, .invariant = true, .log_probabilities = true};
    Engine small(*model, {.slots = 1, .cache_tokens = kCache, .prefill_tokens = 32, .decode = invariant});
    Engine large(*model, {.slots = 150, .cache_tokens = 9000, .prefill_tokens = 32, .decode = invariant});
    for (int64_t i = 0; i < 149; ++i) large.add(some_text(3 + i % 40, i), {.sampling = kDrawn, .max_tokens = 2 + i % 50});
    tokens_of(large, 9);
    const SequenceState a = state_after(small), b = state_after(large);
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(log_probabilities.end()[-2], log_probabilities.back());
    const auto of_a = a.state.named(), of_b = b.state.named();
    for (size_t i = 0; i < of_a.size(); ++i) EXPECT_TRUE(torch::equal(of_a[i].value, of_b[i].value)) << of_a[i].name;
  }
}

TEST(Engine, RefusesWhatItCannotDo) {
  const auto model = distinct_model(torch::kCPU);
  EXPECT_THROW(Engine(*model, {.slots = 0}), UsageError);
  EXPECT_THROW(Engine(*model, {.cache_tokens = -1}), UsageError);
  Engine engine(*model, {.slots = 2});
  EXPECT_THROW(engine.add(std::vector<int64_t>{}, {}), Error);
  EXPECT_THROW(engine.add({257}, {}), Error);
  EXPECT_THROW(engine.add({-1}, {}), Error);
  EXPECT_THROW(engine.add({1}, {.sampling = {.repetition_penalty = 0}}), UsageError);
  EXPECT_THROW(engine.add({1}, {.max_tokens = -2}), UsageError);
  EXPECT_THROW(engine.remove(7), Error);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.free_slots(), 2);
}

TEST(Engine, ASequenceThatOutgrowsTheCacheEndsAloneAndLeavesItsRoom) {
  const auto model = distinct_model(torch::kCPU, "attn-tiny");
  Engine engine(*model, {.slots = 3, .cache_tokens = 100});
  EXPECT_EQ(message_of<Error>([&] { engine.add(some_text(102, 1), {}); }),
            "a text of 102 tokens, where the cache of all sequences has room for 100: give it more tokens");
  const auto text = some_text(60, 4), shorter = some_text(30, 7), waits = some_text(13, 1);
  const int64_t first = engine.add(text, {.sampling = kGreedy}), second = engine.add(shorter, {.sampling = kGreedy, .max_tokens = 4});
  const int64_t third = engine.add(waits, {.sampling = kGreedy, .max_tokens = 5});  // 60, 33 and 17 keys: it waits for the second to end
  auto tokens = tokens_of(engine);
  EXPECT_EQ(engine.finish(first), Finish::cache_full);
  EXPECT_EQ(tokens[second], greedy_text(*model, shorter, 4));
  EXPECT_EQ(tokens[third], greedy_text(*model, waits, 5));
  EXPECT_EQ(tokens[first].size(), 41U);
  EXPECT_EQ(tokens[first], greedy_text(*model, text, static_cast<int64_t>(tokens[first].size())));
  EXPECT_EQ(engine.free_slots(), 3);
}

TEST(Engine, EndsAtTheModelsLastPosition) {
  ModelConfig config = find_preset("based-tiny");
  config.max_positions = 16;
  torch::manual_seed(3);
  LanguageModel model(config);
  model.eval();
  Engine engine(model, {.slots = 2});
  EXPECT_NE(message_of<Error>([&] { engine.add(some_text(18, 1), {}); }).find("17 positions are needed"), std::string::npos);
  const int64_t sequence = engine.add(some_text(10, 1), {.sampling = kGreedy});
  EXPECT_EQ(tokens_of(engine)[sequence].size(), 7U);  // steps read positions 9 to 15
  EXPECT_EQ(engine.finish(sequence), Finish::positions);
}

TEST(Engine, EndsAtAStopTokenAndAtOnceWhereNothingIsAskedFor) {
  const auto model = distinct_model(torch::kCPU);
  const std::vector<int64_t> greedy = greedy_text(*model, some_text(5, 2), 12);
  Engine engine(*model, {.slots = 2});
  const int64_t sequence = engine.add(some_text(5, 2), {.sampling = kGreedy, .stop_tokens = {greedy[7]}});
  const int64_t none = engine.add(some_text(5, 2), {.max_tokens = 0});
  const auto first = std::find(greedy.begin(), greedy.end(), greedy[7]);
  auto tokens = tokens_of(engine);
  EXPECT_EQ(tokens[sequence], std::vector<int64_t>(greedy.begin(), first + 1));
  EXPECT_EQ(engine.finish(sequence), Finish::stop);
  EXPECT_EQ(tokens.count(none), 0U);
  EXPECT_EQ(engine.finish(none), Finish::length);
  EXPECT_THROW(engine.snapshot(none), Error);  // its state was not asked for
}

// Steps that a device cannot record run as plain ones, with the same tokens; a recording that cannot be fused is replayed unchanged.
TEST(Engine, FallsBackFromFusedToRecordedToPlainSteps) {
  static int fused, recorded;
  static bool can_record;
  struct Ran final : runtime::Replay {
    explicit Ran(std::function<void()> step) : body(std::move(step)) {}
    void run() override { body(); }
    std::function<void()> body;
  };
  struct Restore {
    ~Restore() { runtime::recorder_of(torch::kCPU) = nullptr, decode::backend_of(torch::kCPU) = {}; }
  } const restore;
  decode::backend_of(torch::kCPU) = {[](torch::Device) { return decode::Gpu{}; }, nullptr, nullptr, [](const decode::Plan&, void*) {}};
  runtime::recorder_of(torch::kCPU) = [](torch::Device, const std::function<void()>& body,
                                         const runtime::RecordOptions& options) -> std::unique_ptr<runtime::Replay> {
    ++(options.rewrite ? fused : recorded);
    if (options.rewrite || !can_record) throw Error("cannot be done here");
    body();  // a recorder runs the step once before it records
    return std::make_unique<Ran>(body);
  };
  const auto model = distinct_model(torch::kCPU);
  const auto text = some_text(30, 5), longer = some_text(70, 9);
  for (const bool can : {true, false}) {
    fused = recorded = 0, can_record = can;
    Engine engine(*model, {.slots = 2, .prefill_tokens = 32});
    EXPECT_EQ(fused, 1);
    EXPECT_EQ(recorded, 1);
    const int64_t a = engine.add(text, {.sampling = kGreedy, .max_tokens = 20});
    const int64_t b = engine.add(longer, {.sampling = kGreedy, .max_tokens = 20});  // read in pieces
    auto tokens = tokens_of(engine);
    EXPECT_EQ(tokens[a], greedy_text(*model, text, 20));
    EXPECT_EQ(tokens[b], greedy_text(*model, longer, 20));
  }
  Engine plain(*model, {.decode = {.steps = Steps::plain}});
  EXPECT_EQ(fused, 1);
}

// The same weights give the same greedy tokens in fp32 on both devices.
TEST(Generation, CpuAndGpuAgree) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(session_text(*distinct_model(torch::kCUDA), some_text(100, 4), 200, kGreedy),
            session_text(*distinct_model(torch::kCPU), some_text(100, 4), 200, kGreedy));
}

// On a GPU, where steps of several rows are slower with quantised weights. One slot keeps them.
TEST(Engine, OfSeveralSlotsOnAGpuReadsFullWeights) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::NoGradGuard no_grad;
  const auto quantised = distinct_model(torch::kCUDA, "based-tiny"), rounded = distinct_model(torch::kCUDA, "based-tiny");
  const auto int8_of = [](const Tensor& weight) {
    const ops::QuantisedWeight made = ops::quantise(weight.cpu(), ops::WeightForm::int8);
    return ops::QuantisedWeight{made.form, made.values.to(torch::kCUDA), made.scales.to(torch::kCUDA)};
  };
  const auto parameters = rounded->named_parameters();
  for (const auto& [name, layer] : quantisable_layers(*quantised)) {
    layer->quantise(int8_of(layer->weight()), quantised->dtype());
    parameters[name].copy_(layer->weight());
  }
  quantised->quantise_embedding(int8_of(parameters["embedding"]));
  parameters["embedding"].copy_(quantised->named_parameters()["embedding"]);
  const auto count_quantised = [&] {
    const auto layers = quantisable_layers(*quantised);
    return std::count_if(layers.begin(), layers.end(), [](const auto& layer) { return layer.second->quantised().has_value(); });
  };
  const auto texts = [](LanguageModel& model, int64_t slots) {
    Engine engine(model, {.slots = slots});
    for (int64_t i = 0; i < slots; ++i) engine.add(some_text(10 + i, i), {.sampling = kGreedy, .max_tokens = 12});
    return tokens_of(engine);
  };
  const int64_t all = count_quantised();
  texts(*quantised, 1);
  EXPECT_GT(all, 0);
  EXPECT_EQ(count_quantised(), all);
  EXPECT_TRUE(quantised->quantised_head());
  EXPECT_EQ(texts(*quantised, 4), texts(*rounded, 4));
  EXPECT_EQ(count_quantised(), 0);
  EXPECT_FALSE(quantised->quantised_head());
}

}  // namespace engine_test
}  // namespace based
