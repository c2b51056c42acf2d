// Without torch, so that the sanitizers run it.
#include "based/kernels/sampling/adjusted_logits.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace adjusted_logits_test {

constexpr int64_t kRows = 3, kVocab = 70, kStride = 75;

// The arrays of one problem; bias and counts are optional.
struct Problem {
  std::vector<float> logits, adjusted, bias, presence, frequency, penalty;
  std::vector<int32_t> counts;
  std::vector<uint32_t> seen;

  Problem()
      : logits(kRows * kStride),
        adjusted(kRows * kVocab),
        bias(kRows * kVocab),
        presence{0.5F, -1.5F, 2},
        frequency{-0.25F, 2, 0.125F},
        penalty{1, 1.5F, 0.5F},
        counts(kRows * kVocab),
        seen(static_cast<size_t>(kRows * sample_seen_words(kVocab))) {
    const Reals reals = random_reals(kRows * kStride, 1, DType::f32);
    std::copy(reals.begin(), reals.end(), logits.begin());
    for (int64_t at = 0; at < kRows * kVocab; ++at) {
      const auto i = static_cast<size_t>(at);
      bias[i] = at % 11 == 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(at % 13) - 6;
      counts[i] = static_cast<int32_t>(at % 4);
      if (at % 3 == 0) sample_set_seen(seen.data() + at / kVocab * sample_seen_words(kVocab), at % kVocab);
    }
  }
  AdjustedLogits arguments() {
    AdjustedLogits to;
    to.logits = logits.data(), to.adjusted = adjusted.data(), to.bias = bias.data(), to.counts = counts.data();
    to.presence = presence.data(), to.frequency = frequency.data(), to.penalty = penalty.data(), to.seen = seen.data();
    to.rows = kRows, to.vocab = kVocab, to.logits_stride = kStride;
    return to;
  }
};

TEST(AdjustedLogits, OfEveryTokenAreThoseOfTheFormula) {
  for (const bool with_bias : {false, true})
    for (const bool with_counts : {false, true}) {
      Problem problem;
      AdjustedLogits to = problem.arguments();
      if (!with_bias) to.bias = nullptr;
      if (!with_counts) to.counts = nullptr;
      ASSERT_TRUE(cpu::adjusted_logits(to).ok());
      for (int64_t row = 0; row < kRows; ++row)
        for (int64_t token = 0; token < kVocab; ++token) {
          const auto at = static_cast<size_t>(row * kVocab + token), r = static_cast<size_t>(row);
          double x = problem.logits[static_cast<size_t>(row * kStride + token)];
          if (with_bias) x += problem.bias[at];
          if (at % 3 == 0) x = x > 0 ? x / problem.penalty[r] : x * problem.penalty[r];
          if (with_counts) x -= problem.frequency[r] * problem.counts[at] + (problem.counts[at] > 0 ? problem.presence[r] : 0);
          if (std::isinf(x)) {
            EXPECT_EQ(problem.adjusted[at], -std::numeric_limits<float>::infinity()) << at;
          } else {
            EXPECT_NEAR(problem.adjusted[at], x, 1e-5) << at;
          }
        }
    }
}

}  // namespace adjusted_logits_test
}  // namespace based::kernels
