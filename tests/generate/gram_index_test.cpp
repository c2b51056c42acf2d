// Drafts from a text's own n-grams, and whether a text repeats itself.
#include "based/generate/gram_index.h"

#include <gtest/gtest.h>

#include "based/generate/drafting.h"
#include "tests/generate/texts.h"

namespace based {
namespace gram_index_test {

using Ids = std::vector<int64_t>;

Ids ngram_draft(const Ids& tokens, int64_t most) {
  std::vector<Drafter::Request> requests{{0, &tokens, nullptr, most}};
  make_ngram_drafter()->draft(requests);
  return requests[0].drafts;
}

TEST(TextRepetition, DependsOnTheTextAlone) {
  constexpr int64_t block = TextRepetition::kBlock;
  Ids text = some_text(2 * block, 3);  // two blocks that do not repeat
  for (int64_t i = 0; i < 3 * block; ++i) text.push_back(text[static_cast<size_t>(5 + i % 9)]);
  for (const int64_t id : some_text(3 * block, 77)) text.push_back(id);
  std::vector<bool> found;
  TextRepetition by_token;
  for (size_t length = 1; length <= text.size(); ++length) {
    const std::span<const int64_t> prefix = std::span(text).first(length);
    found.push_back(by_token.repeats(prefix));
    EXPECT_EQ(TextRepetition().repeats(prefix), found.back()) << length;
  }
  // Blocks 2 to 4 repeat earlier text, so that blocks 3 to 5 are drafted.
  for (int64_t length = 1; length <= static_cast<int64_t>(text.size()); ++length)
    EXPECT_EQ(found[static_cast<size_t>(length - 1)], length / block >= 3 && length / block <= 5) << length;
  TextRepetition jumps;
  for (const size_t length : {size_t{70}, size_t{71}, size_t{200}, size_t{150}, size_t{4}, text.size()})
    EXPECT_EQ(jumps.repeats(std::span(text).first(length)), found[length - 1]) << length;
  EXPECT_EQ(TextRepetition::left_in_block(0), block);
  EXPECT_EQ(TextRepetition::left_in_block(block - 1), 1);
}

TEST(NgramDrafter, ContinuesTheLatestOccurrenceOfTheLongestGram) {
  EXPECT_EQ(ngram_draft({1, 2, 3, 4, 5, 6}, 7), Ids());
  EXPECT_EQ(ngram_draft({5}, 7), Ids());
  EXPECT_EQ(ngram_draft({1, 2, 8, 9, 1, 2, 6, 7, 1, 2}, 2), Ids({6, 7}));        // the latest
  EXPECT_EQ(ngram_draft({0, 1, 2, 8, 9, 1, 2, 6, 7, 0, 1, 2}, 2), Ids({8, 9}));  // the longest
  EXPECT_EQ(ngram_draft({9, 9, 3, 4, 3, 4}, 5), Ids({3, 4, 3, 4, 3}));           // beyond the text's end
  EXPECT_EQ(ngram_draft({7, 7, 7}, 4), Ids({7, 7, 7, 7}));
}

// The index grows with the text, in steps, and follows a text that is another one.
TEST(NgramDrafter, FollowsALongText) {
  const auto drafter = make_ngram_drafter();
  Ids text;
  for (int64_t i = 0; i < 5000; ++i) {
    text.push_back((i * i) % 4999);
    std::vector<Drafter::Request> requests{{3, &text, nullptr, 1}};
    if (i % 100 == 0) drafter->draft(requests);
  }
  for (int64_t i = 40; i < 44; ++i) text.push_back((i * i) % 4999);
  std::vector<Drafter::Request> requests{{3, &text, nullptr, 3}};
  drafter->draft(requests);
  EXPECT_EQ(requests[0].drafts, Ids({44 * 44, 45 * 45, 46 * 46}));
  const Ids other{1, 2, 3, 1, 2};
  requests = {{3, &other, nullptr, 2}};
  drafter->draft(requests);
  EXPECT_EQ(requests[0].drafts, Ids({3, 1}));
}

}  // namespace gram_index_test
}  // namespace based
