// Sampling options that only some sequences have: penalties of generated tokens, biases, restrictions, and lists of likely tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <bit>
#include <set>

#include "based/generate/engine.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/recorded_on_cpu.h"
#include "tests/generate/texts.h"

namespace based {
namespace engine_sampling_test {

constexpr int64_t kVocab = 257;
constexpr const char* kHash = "00112233445566778899aabbccddeeff";
using Ids = std::vector<int64_t>;

// Every device, with a state of fixed size and with one that grows in pages, with steps of all slots and of the decoding ones only.
class EngineSampling : public testing::TestWithParam<std::tuple<torch::DeviceType, const char*, Steps>> {
 protected:
  void SetUp() override {
    if (device() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    if (device() == torch::kCPU && std::get<Steps>(GetParam()) == Steps::fused) recorded_.emplace();
    model_ = distinct_model(device(), std::get<const char*>(GetParam()));
  }
  static torch::DeviceType device() { return std::get<torch::DeviceType>(GetParam()); }
  static EngineOptions options(bool ahead = false, bool log_probabilities = false) {
    EngineOptions options{.slots = 4, .cache_tokens = 900, .prefill_tokens = 32, .ahead = ahead};
    options.decode.steps = std::get<Steps>(GetParam());
    options.decode.log_probabilities = log_probabilities;
    return options;
  }
  // fp64 [tokens, vocabulary], of the model's parallel form.
  Tensor logits_of(const Ids& text) const {
    const torch::InferenceMode inference;
    const auto length = static_cast<int64_t>(text.size());
    const Tensor hidden = model_->forward(torch::tensor(text).to(model_->device()), Sequences::equal(1, length, model_->device()));
    return model_->logits(hidden).narrow(1, 0, kVocab).to(torch::kCPU, torch::kDouble);
  }
  // The most likely tokens by the formulas, one parallel pass for each.
  Ids penalised_text(Ids text, int64_t tokens, const SamplingOptions& sampling, size_t first_generated) const {
    const size_t prompt = text.size();
    for (int64_t i = 0; i < tokens; ++i) {
      const Tensor last = logits_of(text)[-1].contiguous();
      std::vector<double> x(last.const_data_ptr<double>(), last.const_data_ptr<double>() + kVocab);
      std::map<int64_t, int> generated;
      for (size_t at = first_generated; at < text.size(); ++at) ++generated[text[at]];
      for (const auto& [id, bias] : sampling.logit_bias) x[static_cast<size_t>(id)] += bias;
      for (const int64_t id : std::set<int64_t>(text.begin(), text.end())) {
        double& of_id = x[static_cast<size_t>(id)];
        of_id = of_id > 0 ? of_id / sampling.repetition_penalty : of_id * sampling.repetition_penalty;
      }
      for (const auto& [id, count] : generated)
        x[static_cast<size_t>(id)] -= sampling.frequency_penalty * count + sampling.presence_penalty;
      text.push_back(std::max_element(x.begin(), x.end()) - x.begin());
    }
    return {text.begin() + static_cast<int64_t>(prompt), text.end()};
  }

  std::optional<RecordedOnCpu> recorded_;
  std::shared_ptr<LanguageModel> model_;
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineSampling,
                         testing::Combine(testing::Values(torch::kCPU, torch::kCUDA), testing::Values("based-tiny", "attn-tiny"),
                                          testing::Values(Steps::fused, Steps::plain)),
                         [](const auto& given) {
                           return std::string(std::get<const char*>(given.param)).substr(0, 4) +
                                  (std::get<torch::DeviceType>(given.param) == torch::kCPU ? "_on_cpu" : "_on_cuda") +
                                  (std::get<Steps>(given.param) == Steps::plain ? "_plain" : "_recorded");
                         });

// Slots are used again by sequences with other options: counts or biases that stay in a slot would change the tokens.
TEST_P(EngineSampling, PenalisedAndBiasedTextsAreThoseOfTheFormulas) {
  const auto text = some_text(20, 3);
  const Ids plain = greedy_text(*model_, text, 1);
  const std::vector<SamplingOptions> all{
      {.temperature = 0, .presence_penalty = 2},
      {.temperature = 0, .frequency_penalty = 2},
      {.temperature = 0, .logit_bias = {{plain[0], -100}, {5, 1.5}, {5, 1.5}}},
      {.temperature = 0},
      {.temperature = 0, .repetition_penalty = 1.3, .presence_penalty = -1, .frequency_penalty = 0.5, .logit_bias = {{0, 20}, {256, -3}}}};
  std::vector<Ids> texts;
  for (const SamplingOptions& sampling : all) texts.push_back(penalised_text(text, 14, sampling, text.size()));
  for (const size_t penalised : {0, 1, 2, 4}) EXPECT_NE(texts[penalised], texts[3]) << "the options change the tokens";
  for (const bool ahead : {false, true}) {
    Engine engine(*model_, options(ahead));
    std::map<int64_t, Ids> expected;
    for (size_t i = 0; i < 7; ++i) expected[engine.add(text, {.sampling = all[i % all.size()], .max_tokens = 14})] = texts[i % all.size()];
    EXPECT_EQ(tokens_of(engine), expected) << ahead;
  }
}

// A bias of 0 draws from adjusted logits that equal the model's, so that the draws, the repetition penalty and its marks must agree.
TEST_P(EngineSampling, AdjustingByNothingChangesNoDraw) {
  SamplingOptions adjusted = kDrawn;
  adjusted.logit_bias = {{9, 0}};
  Engine engine(*model_, options(false, true));
  std::vector<std::vector<float>> log_probabilities(3);
  for (const SamplingOptions& sampling : {kDrawn, adjusted, kDrawn}) engine.add(some_text(40, 4), {.sampling = sampling, .max_tokens = 60});
  std::vector<Ids> tokens(3);
  while (!engine.idle())
    for (const Engine::Output& output : engine.step()) {
      tokens[static_cast<size_t>(output.sequence)].push_back(output.token);
      log_probabilities[static_cast<size_t>(output.sequence)].push_back(output.log_probability);
    }
  EXPECT_EQ(tokens[0].size(), 60U);
  EXPECT_EQ(tokens[1], tokens[0]);
  EXPECT_EQ(tokens[2], tokens[0]);
  EXPECT_THAT(log_probabilities[1], testing::Pointwise(testing::FloatNear(1e-4F), log_probabilities[0]));
}

// The ids of a state and the length of its prompt determine all penalties.
TEST_P(EngineSampling, ASavedSequenceContinuesAsWithoutTheBreak) {
  const TemporaryFolder folder;
  const auto text = some_text(40, 8);
  const SamplingOptions sampling{0.9, 0, 1, 0, 1.2, 3, 1.5, 0.75, {{7, 2}}};
  Engine whole(*model_, options());
  const int64_t sequence = whole.add(text, {.sampling = sampling, .max_tokens = 50});
  const Ids expected = tokens_of(whole)[sequence];

  Engine engine(*model_, options()), other(*model_, options());
  const int64_t begun = engine.add(text, {.sampling = sampling, .max_tokens = 50});
  const Ids first = tokens_of(engine, 25)[begun];
  save_sequence(folder.file("a"), engine.snapshot(begun), kHash);
  const int64_t taken = static_cast<int64_t>(first.size());
  ASSERT_GT(taken, 10);
  const int64_t rest = other.add(load_sequence(folder.file("a"), *model_, kHash),
                                 {.sampling = sampling, .max_tokens = 50 - taken, .first_generated = static_cast<int64_t>(text.size())});
  const int64_t forked =
      engine.fork(begun, {.sampling = sampling, .max_tokens = 50 - taken, .first_generated = static_cast<int64_t>(text.size())});
  const auto there = tokens_of(other), here = tokens_of(engine);
  Ids restored = first, from_fork = first;
  restored.insert(restored.end(), there.at(rest).begin(), there.at(rest).end());
  from_fork.insert(from_fork.end(), here.at(forked).begin(), here.at(forked).end());
  EXPECT_EQ(restored, expected);
  EXPECT_EQ(from_fork, expected);
}

// By default only the tokens of this request count, and a longer prompt begins the count anew.
TEST_P(EngineSampling, TokensOfThePromptDoNotCount) {
  const SamplingOptions sampling{.temperature = 0, .presence_penalty = 2, .frequency_penalty = 2};
  const auto text = some_text(12, 5), more = some_text(40, 90);
  Engine engine(*model_, options());
  const int64_t sequence = engine.add(text, {.sampling = sampling, .max_tokens = 30});
  tokens_of(engine, 12);
  engine.extend(sequence, more);
  const Ids prompt = engine.text(sequence);
  const int64_t sampled = static_cast<int64_t>(prompt.size() - text.size() - more.size());
  const Ids rest = tokens_of(engine)[sequence], expected = penalised_text(prompt, 30 - sampled, sampling, prompt.size());
  EXPECT_EQ(rest, expected);
  EXPECT_NE(rest, penalised_text(prompt, 30 - sampled, sampling, text.size())) << "tokens before the new prompt do not count";
  const int64_t anew = engine.add(prompt, {.sampling = sampling, .max_tokens = 30 - sampled});
  EXPECT_EQ(tokens_of(engine)[anew], expected);
}

// Penalties that are switched on later count the tokens before.
TEST_P(EngineSampling, NewOptionsCountTheTokensBefore) {
  const SamplingOptions sampling{.temperature = 0, .presence_penalty = 1, .frequency_penalty = 2};
  const auto text = some_text(12, 5);
  Engine engine(*model_, options());
  const int64_t sequence = engine.add(text, {.sampling = kGreedy, .max_tokens = 30});
  tokens_of(engine, 12);
  engine.set_sampling(sequence, sampling);
  const Ids before = engine.text(sequence);
  const Ids rest = tokens_of(engine)[sequence];
  EXPECT_EQ(rest, penalised_text(before, static_cast<int64_t>(rest.size()), sampling, text.size()));
}

void expect_top(const std::vector<TokenProbability>& top, const Tensor& log_probabilities, int64_t k, const std::string& where) {
  ASSERT_EQ(static_cast<int64_t>(top.size()), k) << where;
  const auto [values, ids] = log_probabilities.topk(k);
  for (int64_t i = 0; i < k; ++i) {
    const TokenProbability& one = top[static_cast<size_t>(i)];
    EXPECT_NEAR(one.log_probability, values[i].item<double>(), 2e-3) << where << ", " << i;
    EXPECT_NEAR(one.log_probability, log_probabilities[one.id].item<double>(), 2e-3) << where << ", " << i;
    EXPECT_LE(one.log_probability, top[static_cast<size_t>(std::max<int64_t>(i - 1, 0))].log_probability) << where;
  }
}

// A token has exactly the same number alone and in the list, so that clients can compare them.
void expect_own(int64_t token, float log_probability, const std::vector<TokenProbability>& top, const std::string& where) {
  EXPECT_LE(log_probability, top.at(0).log_probability) << where;
  const auto found = std::find_if(top.begin(), top.end(), [&](const TokenProbability& one) { return one.id == token; });
  if (found != top.end()) {
    EXPECT_EQ(found->log_probability, log_probability) << where;
  }
}

// Sequences that ask for lists of different lengths, for none, and with biases, which the lists do not contain.
TEST_P(EngineSampling, SampledTokensHaveTheMostLikelyOnesInTheirPlace) {
  const auto text = some_text(30, 6);
  SamplingOptions biased = kDrawn;
  biased.logit_bias = {{11, 30}};
  for (const bool log_probabilities : {false, true}) {
    Engine engine(*model_, options(true, log_probabilities));
    const std::vector<SequenceOptions> all{{.sampling = kGreedy, .max_tokens = 15, .top_log_probabilities = 5},
                                           {.sampling = kDrawn, .max_tokens = 15, .top_log_probabilities = 20},
                                           {.sampling = kDrawn, .max_tokens = 15},
                                           {.sampling = biased, .max_tokens = 15, .top_log_probabilities = 1}};
    std::vector<std::vector<Engine::Output>> outputs(all.size());
    for (const SequenceOptions& one : all) engine.add(text, one);
    while (!engine.idle())
      for (const Engine::Output& output : engine.step()) outputs[static_cast<size_t>(output.sequence)].push_back(output);
    int64_t most_likely = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(outputs[i].size(), 15U);
      const Tensor wanted = logits_of(engine.text(static_cast<int64_t>(i))).log_softmax(1);
      for (size_t t = 0; t < outputs[i].size(); ++t) {
        const Engine::Output& output = outputs[i][t];
        const std::string where = "sequence " + std::to_string(i) + ", token " + std::to_string(t);
        const Tensor row = wanted[static_cast<int64_t>(text.size() + t) - 1];
        expect_top(output.top, row, all[i].top_log_probabilities, where);
        if (log_probabilities || all[i].top_log_probabilities > 0) {
          EXPECT_NEAR(output.log_probability, row[output.token].item<double>(), 2e-3) << where;
        }
        if (!output.top.empty()) expect_own(output.token, output.log_probability, output.top, where);
        if (i == 0) {
          EXPECT_EQ(output.top.at(0).log_probability, output.log_probability) << "greedy";
        }
        if (i == 3) most_likely += output.top.at(0).id == output.token ? 1 : 0;
      }
    }
    EXPECT_LT(most_likely, 15) << "the bias changes the tokens, not the list";
  }
}

// Read in pieces, together with others, and in cells.
TEST_P(EngineSampling, ScoredTokensHaveTheMostLikelyOnesInTheirPlace) {
  const auto text = some_text(150, 6);
  const Tensor wanted = logits_of(text).log_softmax(1);
  for (const bool invariant : {false, true}) {
    EngineOptions with = options();
    with.decode.invariant = invariant;
    with.cache_tokens = 12 * cell_tokens(device());
    Engine engine(*model_, with);
    engine.add(some_text(40, 4), {.sampling = kDrawn, .max_tokens = 3, .scores = true, .top_log_probabilities = 2});
    engine.add(some_text(9, 5), {.sampling = kDrawn, .max_tokens = 3, .scores = true});
    const int64_t first = 20, k = 7;
    const int64_t sequence = engine.add(
        text, {.sampling = kGreedy, .max_tokens = 1, .scores = true, .first_scored = first, .greedy = true, .top_log_probabilities = k});
    tokens_of(engine);
    const std::vector<float>& scores = engine.scores(sequence);
    ASSERT_GE(scores.size(), 130U);
    for (size_t i = 0; i < 130; ++i) {
      const int64_t at = first + static_cast<int64_t>(i);
      const std::string where = "token " + std::to_string(at) + (invariant ? ", in cells" : "");
      const auto found = engine.top_scores(sequence, i);
      const std::vector<TokenProbability> top(found.begin(), found.end());
      expect_top(top, wanted[at - 1], k, where);
      expect_own(text[static_cast<size_t>(at)], scores[i], top, where);
      EXPECT_EQ(engine.greedy(sequence)[i] != 0, scores[i] == top[0].log_probability) << where;
    }
    EXPECT_EQ(engine.top_scores(0, 38).size(), 2U);
  }
}

// Allowed are the multiples of a number that depends on the tokens so far; after eight tokens there are none.
TEST_P(EngineSampling, OnlyAllowedTokensAreSampled) {
  const auto text = some_text(30, 6);
  for (const bool ahead : {false, true}) {
    Engine engine(*model_, options(ahead));
    std::vector<uint64_t> words((kVocab + 63) / 64);
    std::vector<Ids> asked;
    const AllowedTokens allowed = [&](std::span<const int64_t> generated) {
      if (asked.empty() || asked.back().size() != generated.size()) asked.emplace_back(generated.begin(), generated.end());
      std::fill(words.begin(), words.end(), 0);
      const auto factor = static_cast<int64_t>(generated.size()) + 2;
      for (int64_t id = 0; id < kVocab && generated.size() < 8; id += factor)
        words[static_cast<size_t>(id / 64)] |= uint64_t{1} << (id % 64);
      return std::span<const uint64_t>(words);
    };
    const int64_t free = engine.add(text, {.sampling = kDrawn, .max_tokens = 20});
    const int64_t restricted = engine.add(text, {.sampling = kDrawn, .top_log_probabilities = 3, .allowed = allowed});
    const int64_t greedy = engine.add(text, {.sampling = kGreedy, .max_tokens = 6, .allowed = [](std::span<const int64_t> generated) {
                                               static const std::vector<uint64_t> all((kVocab + 63) / 64, ~uint64_t{0});
                                               static const std::vector<uint64_t> one{0, uint64_t{1} << 36, 0, 0, 0};
                                               return std::span<const uint64_t>(generated.size() == 2 ? one : all);
                                             }});
    auto tokens = tokens_of(engine);
    ASSERT_EQ(tokens[restricted].size(), 8U);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(tokens[restricted][i] % (static_cast<int64_t>(i) + 2), 0) << i;
      EXPECT_EQ(asked.at(i), Ids(tokens[restricted].begin(), tokens[restricted].begin() + static_cast<int64_t>(i)));
    }
    EXPECT_EQ(engine.finish(restricted), Finish::stop);
    EXPECT_EQ(tokens[free], session_text(*model_, text, 20, kDrawn));
    const Ids first = greedy_text(*model_, text, 2);
    EXPECT_EQ(Ids(tokens[greedy].begin(), tokens[greedy].begin() + 3), (Ids{first[0], first[1], 100}));
    Ids with = text;
    with.insert(with.end(), tokens[greedy].begin(), tokens[greedy].begin() + 3);
    EXPECT_EQ(Ids(tokens[greedy].begin() + 3, tokens[greedy].end()), greedy_text(*model_, with, 3));
    EXPECT_EQ(engine.free_slots(), 4);
  }
}

// A request that is cancelled costs no more than the piece that is being read.
TEST_P(EngineSampling, ALongPromptIsRemovedBetweenItsPieces) {
  EngineOptions with = options();
  with.cache_tokens = 5000, with.prefill_tokens = 256;
  Engine engine(*model_, with);
  const auto text = some_text(20, 3);
  const int64_t other = engine.add(text, {.sampling = kGreedy, .max_tokens = 12});
  auto tokens = tokens_of(engine, 2)[other];
  for (int64_t round = 0; round < 2; ++round) {
    const int64_t cancelled = engine.add(some_text(3000, round), {.sampling = kGreedy}), before = engine.tokens_read();
    const int64_t waiting = engine.add(some_text(2000, round), {.sampling = kGreedy});
    for (int64_t pieces = 1; pieces <= 2; ++pieces) {
      for (const Engine::Output& output : engine.step()) tokens.push_back(output.token);
      EXPECT_EQ(engine.tokens_read() - before, 256 * pieces);
    }
    engine.remove(cancelled);
    engine.remove(waiting);
    EXPECT_THROW(engine.remove(cancelled), Error);
    EXPECT_EQ(engine.free_slots(), 3);
    for (const Engine::Output& output : engine.step()) tokens.push_back(output.token);
    EXPECT_EQ(engine.tokens_read() - before, 512);
  }
  const auto shorter = some_text(300, 9);
  const int64_t next = engine.add(shorter, {.sampling = kGreedy, .max_tokens = 5});
  auto rest = tokens_of(engine);
  tokens.insert(tokens.end(), rest[other].begin(), rest[other].end());
  EXPECT_EQ(tokens, greedy_text(*model_, text, 12));
  EXPECT_EQ(rest[next], greedy_text(*model_, shorter, 5));
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.free_slots(), 4);
}

TEST(EngineSamplingOptions, OutOfRangeAreRefused) {
  const auto model = distinct_model(torch::kCPU);
  Engine engine(*model, {.slots = 1});
  const auto refused = [&](const SequenceOptions& options) { return message_of<Error>([&] { engine.add({1, 2}, options); }); };
  EXPECT_EQ(refused({.sampling = {.presence_penalty = 2.5}}), "presence-penalty must be -2 to 2, got 2.5");
  EXPECT_EQ(refused({.sampling = {.frequency_penalty = -3}}), "frequency-penalty must be -2 to 2, got -3.0");
  EXPECT_EQ(refused({.sampling = {.logit_bias = {{3, 101}}}}), "logit-bias must be -100 to 100, got 101.0");
  for (const int64_t id : {int64_t{-1}, kVocab})
    EXPECT_NE(refused({.sampling = {.logit_bias = {{id, 1}}}}).find("logit_bias"), std::string::npos);
  EXPECT_EQ(refused({.top_log_probabilities = 21}), "top_log_probabilities must be 0 to 20, got 21");
  EXPECT_EQ(refused({.first_generated = 3}), "first_generated must be 0 to 2, the number of tokens, or -1; got 3");
  EXPECT_EQ(refused({.first_generated = 2}), "");
  EXPECT_THROW(engine.set_sampling(0, {.presence_penalty = std::nan("")}), UsageError);
  EXPECT_THROW(engine.set_sampling(0, {.logit_bias = {{kVocab, 1}}}), Error);
}

}  // namespace engine_sampling_test
}  // namespace based
