#include "based/generate/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <span>

#include "based/kernels/sampling/sampling.h"

namespace based {
namespace sampler_test {

// −1 if no token can be sampled.
int64_t sample_token(std::span<const float> logits, const SamplingOptions& options, std::span<const int64_t> text) {
  const auto vocab = static_cast<int64_t>(logits.size()), position = static_cast<int64_t>(text.size());
  std::vector<uint32_t> seen(static_cast<size_t>(kernels::sample_seen_words(vocab)));
  // Without a penalty the marks are not read, and marking a long sequence takes long.
  for (const int64_t id : options.repetition_penalty != 1 ? text : std::span<const int64_t>())
    if (id >= 0 && id < vocab) kernels::sample_set_seen(seen.data(), id);
  const auto temperature = static_cast<float>(options.temperature), top_p = static_cast<float>(options.top_p),
             min_p = static_cast<float>(options.min_p), penalty = static_cast<float>(options.repetition_penalty);
  int64_t token = -1;
  kernels::Sample to;
  to.logits = logits.data();
  to.token = &token;
  to.position = &position;
  to.seed = &options.seed;
  to.temperature = &temperature;
  to.top_k = &options.top_k;
  to.top_p = &top_p;
  to.min_p = &min_p;
  to.penalty = &penalty;
  to.seen = seen.data();
  to.rows = 1, to.vocab = vocab;
  if (const kernels::Status status = kernels::cpu::sample(to); !status.ok()) throw Error(status.what);
  return token;
}

std::vector<float> logits() { return {0.F, 2.F, 1.F, -1.F, 2.F}; }

int64_t draw(SamplingOptions options, std::vector<int64_t> text = {}) {
  std::vector<float> values = logits();
  return sample_token(values, options, text);
}

SamplingOptions with(auto change) {
  SamplingOptions options;
  change(options);
  return options;
}

// Frequencies of many samples, each at another position, as in a sequence.
std::map<int64_t, double> frequencies(SamplingOptions options) {
  std::map<int64_t, double> counts;
  std::vector<int64_t> text;
  constexpr int draws = 4000;
  for (int i = 0; i < draws; ++i) {
    text.push_back(-1);
    counts[draw(options, text)] += 1.0 / draws;
  }
  return counts;
}

TEST(Sampler, TemperatureZeroTakesTheMostLikelyAndTiesGoToTheSmallerId) {
  EXPECT_EQ(draw(with([](auto& o) { o.temperature = 0; })), 1);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const auto found = frequencies({});
  double sum = 0;
  for (const float x : logits()) sum += std::exp(x);
  for (size_t id = 0; id < logits().size(); ++id)
    EXPECT_NEAR(found.count(static_cast<int64_t>(id)) ? found.at(static_cast<int64_t>(id)) : 0, std::exp(logits()[id]) / sum, 0.03) << id;
}

TEST(Sampler, TopKTopPAndMinPLeaveOnlyTheMostLikely) {
  EXPECT_EQ(frequencies(with([](auto& o) { o.top_k = 2; })).size(), 2U);
  EXPECT_EQ(frequencies(with([](auto& o) { o.top_p = 0.5; })).size(), 2U);
  EXPECT_EQ(frequencies(with([](auto& o) { o.min_p = 0.3; })).size(), 3U);
  EXPECT_EQ(frequencies(with([](auto& o) { o.top_k = 1; })).size(), 2U);  // two are equally likely, and equals stay together
  EXPECT_EQ(frequencies(with([](auto& o) { o.top_p = 1e-6; })).size(), 2U);
}

TEST(Sampler, SeedAndPositionDecideTheDraw) {
  SamplingOptions one = with([](auto&o) { o.seed = 7; }), other = with([](auto&o) { o.seed = 8; });
  int64_t differ = 0;
  std::vector<int64_t> text;
  for (int i = 0; i < 64; ++i) {
    text.push_back(0);
    EXPECT_EQ(draw(one, text), draw(one, text));
    differ += draw(one, text) != draw(other, text);
  }
  EXPECT_GT(differ, 0);
}

TEST(Sampler, RepetitionPenaltyMakesSeenTokensLessLikely) {
  SamplingOptions options = with([](auto& o) {
    o.temperature = 0;
    o.repetition_penalty = 3;
  });
  EXPECT_EQ(draw(options, {1}), 4);
  EXPECT_EQ(draw(options, {1, 4}), 2);
}

TEST(Sampler, RefusesOptionsOutOfRangeAndLogitsThatAreNotFinite) {
  for (const auto& wrong :
       {with([](auto& o) { o.temperature = -1; }), with([](auto& o) { o.temperature = std::nan(""); }), with([](auto& o) { o.top_k = -1; }),
        with([](auto& o) { o.top_p = 0; }), with([](auto& o) { o.min_p = 2; }), with([](auto& o) { o.repetition_penalty = 0; }),
        with([](auto& o) { o.repetition_penalty = 1e-60; }), with([](auto& o) { o.repetition_penalty = 1e60; }),
        with([](auto& o) { o.temperature = 1e60; }), with([](auto& o) { o.presence_penalty = 2.1; }),
        with([](auto& o) { o.presence_penalty = std::nan(""); }), with([](auto& o) { o.frequency_penalty = -2.1; }), with([](auto& o) {
          o.logit_bias = {{1, 0}, {2, 100.5}};
        }),
        with([](auto& o) {
          o.logit_bias = {{1, std::nan("")}};
        })})
    EXPECT_THROW(check_sampling_options(wrong), UsageError);
  EXPECT_NO_THROW(check_sampling_options({0, 0, 1, 0, 1, 0, -2, 2, {{1, -100}, {1, 100}}}));
  std::vector<float> bad{1.F, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(sample_token(bad, {}, {}), -1);
  std::vector<float> none{-INFINITY, -INFINITY};
  EXPECT_EQ(sample_token(none, {}, {}), -1);
}

}  // namespace sampler_test
}  // namespace based
