// The lengths of drafts for given shares of accepted tokens and given times.
#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "based/generate/drafting.h"

namespace based {
namespace draft_lengths_test {

// A plain step takes 1 s and each draft token 0.1 s.
TEST(DraftLengths, FollowTheShareThatIsAccepted) {
  DraftLengths lengths;
  EXPECT_EQ(lengths.next(0, 1), 0);  // the time of a plain step is unknown
  lengths.add_step(1, 0, 9), lengths.add_step(1, 0, 1);
  EXPECT_EQ(lengths.next(0, 1), 2);  // p = 1/2: 1.75 tokens in 1.25 s; a third draft token gives 1.875 in 1.375 s
  for (int i = 0; i < 20; ++i) {
    lengths.add_verified(0, 7, 7);
    lengths.add_step(1, 7, 1.7);
  }
  EXPECT_EQ(lengths.next(0, 1), 7);
  int drafted = 0;
  for (; lengths.next(0, 1) > 0 && drafted < 30; ++drafted) {
    lengths.add_verified(0, lengths.next(0, 1), 0);
    lengths.add_step(1, 1, 1.1);
  }
  EXPECT_LT(drafted, 15);  // it gives up
  int trials = 0;
  for (int i = 0; i < 200; ++i) {
    const int64_t length = lengths.next(0, 1);
    EXPECT_LE(length, 1);
    lengths.add_verified(0, length, 0);
    trials += length > 0 ? 1 : 0;
  }
  EXPECT_GE(trials, 3);
  EXPECT_LE(trials, 6);
  for (int i = 0; i < 200 && lengths.next(0, 1) < 7; ++i) lengths.add_verified(0, lengths.next(0, 1), lengths.next(0, 1));
  EXPECT_EQ(lengths.next(0, 1), 7);  // and finds a text that repeats itself again
}

TEST(DraftLengths, FollowTheTimeOfADraft) {
  DraftLengths lengths;
  lengths.add_step(1, 0, 1), lengths.add_step(1, 0, 1);
  for (int i = 0; i < 20; ++i) lengths.add_verified(0, 7, 7);
  lengths.add_step(1, 7, 8);  // each token takes as long as a step
  EXPECT_EQ(lengths.next(0, 1), 0);
  for (int i = 0; i < 60; ++i) lengths.add_step(1, 7, 1.07);
  EXPECT_EQ(lengths.next(0, 1), 7);
  lengths.add_step(1, 0, 1);
  for (int i = 0; i < 60; ++i) lengths.add_step(1, 7, 7.4);  // drafting takes as long as a step
  EXPECT_EQ(lengths.next(0, 1), 0);
}

TEST(DraftLengths, MeasurePlainStepsAgain) {
  DraftLengths lengths;
  lengths.add_step(1, 0, 1), lengths.add_step(1, 0, 1);
  int drafted = 0;
  for (; drafted < 200 && lengths.next(0, 1) > 0; ++drafted) {
    lengths.add_verified(0, 7, 7);
    lengths.add_step(1, 7, 1.7);
  }
  EXPECT_EQ(drafted, 64);
  lengths.add_step(1, 0, 1);
  EXPECT_EQ(lengths.next(0, 1), 7);
}

// A text of some tokens by plain steps, each of which takes 1 s, and steps with drafts.
struct Text {
  double fixed, each;  // what drafts, and each of their tokens, add to a step
  double chance;       // that a draft token is right
  int64_t tokens = 3000;
  double cold = 0;        // added to the first step with drafts
  double hiccups = 0.02;  // the share of steps whose measured time is a hundred times too long
};
// The time that the text takes, as a share of the time by plain steps.
double share_of_plain_time(const Text& text) {
  DraftLengths lengths;
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform;
  double seconds = 0, cold = text.cold;
  int64_t tokens = 0;
  while (tokens < text.tokens) {
    const int64_t length = lengths.next(0, 1);
    int64_t accepted = 0;
    while (accepted < length && uniform(random) < text.chance) ++accepted;
    const double step = 1 + (length > 0 ? text.fixed + text.each * static_cast<double>(length) + std::exchange(cold, 0) : 0);
    lengths.add_verified(0, length, accepted);
    lengths.add_step(1, length, uniform(random) < text.hiccups ? 100 * step : step);
    seconds += step;
    tokens += 1 + accepted;
  }
  return seconds / static_cast<double>(tokens);
}

// Small models, whose steps with drafts have a large fixed part, and large ones; drafts that are never, sometimes and always right.
TEST(DraftLengths, LoseAFewPercentOfTheTimeAtMost) {
  for (const double fixed : {0.0, 0.3, 4.0, 20.0})
    for (const double each : {0.05, 0.3, 1.0})
      for (const double chance : {0.0, 0.5, 0.9, 1.0})
        EXPECT_LT(share_of_plain_time({fixed, each, chance}), 1 / 0.95) << "fixed " << fixed << ", each " << each << ", chance " << chance;
  EXPECT_LT(share_of_plain_time({0, 0.05, 1}), 0.25);
  EXPECT_LT(share_of_plain_time({0, 0.05, 0.75}), 0.55);
  EXPECT_LT(share_of_plain_time({2, 0.2, 1}), 0.75);
}

// The first step with drafts may be slow: on a GPU it loads kernels, or the machine runs another program.
TEST(DraftLengths, ForgetASlowFirstStep) {
  for (const double cold : {2.0, 10.0, 30.0}) {
    const Text text{.fixed = 0.35, .each = 0.1, .chance = 0.75, .tokens = 256, .cold = cold, .hiccups = 0};
    EXPECT_LT(share_of_plain_time(text), 0.76 + 1.5 * cold / 256) << cold;
  }
}

}  // namespace draft_lengths_test
}  // namespace based
