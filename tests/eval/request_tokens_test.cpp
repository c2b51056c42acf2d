#include "based/eval/request_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace based {
namespace request_tokens_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kEnd = 256;  // the byte tokenizer's <|endoftext|>

std::vector<int64_t> bytes_of(const std::string& text) {
  std::vector<int64_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

TEST(RequestTokens, TrailingSpaceIsPythonsAndCountsCharacters) {
  const auto expect = [](const std::string& text, int64_t characters, size_t bytes) {
    EXPECT_EQ(trailing_space(text).characters, characters) << text;
    EXPECT_EQ(trailing_space(text).bytes, bytes) << text;
  };
  expect("a", 0, 0);
  expect("a \n\t", 3, 3);
  expect(" ", 1, 1);
  expect("a\u3000 ", 2, 4);
  expect("a\u0085\u00a0", 2, 4);
  expect("a\x1c", 1, 1);
  expect("a\u200b", 0, 0);    // no space to Python
  expect("a\x80\x80", 0, 0);  // no characters
  expect("", 0, 0);
}

TEST(RequestTokens, WhiteSpaceAtTheContextsEndBelongsToTheContinuation) {
  const ByteTokenizer tokenizer;
  const RequestTokens moved = encode_pair(tokenizer, "ab \n", "cd");
  EXPECT_EQ(moved.context, bytes_of("ab"));
  EXPECT_EQ(moved.continuation, bytes_of(" \ncd"));
  EXPECT_EQ(moved.moved, 2);
  EXPECT_EQ(encode_pair(tokenizer, "ab", " cd").continuation, bytes_of(" cd"));
}

TEST(RequestTokens, AnEmptyContextIsTheEndOfText) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(encode_pair(tokenizer, "", "x").context, ElementsAre(kEnd));
  EXPECT_EQ(encode_pair(tokenizer, "", "x").continuation, bytes_of("x"));
  EXPECT_EQ(encode_pair(tokenizer, "", "<|endoftext|>x").continuation, bytes_of("x")) << "it is not predicted after itself";
  EXPECT_THAT(encode_pair(tokenizer, "a<|endoftext|>", "b").context, ElementsAre('a', kEnd));
}

TEST(RequestTokens, CutsKeepTheRightEnd) {
  const ByteTokenizer tokenizer;
  EvalDocument document;
  document.contexts = {"abcdefgh"};
  document.requests = {{.continuation = "xy"},
                       {.kind = EvalRequest::Kind::generate, .until = {"\n"}, .max_tokens = 3},
                       {.kind = EvalRequest::Kind::rolling, .continuation = "abc"}};
  const auto dropped = [&](int64_t max_length) {
    std::vector<int64_t> counts;
    for (const RequestTokens& tokens : encode_requests(tokenizer, document, max_length)) counts.push_back(tokens.dropped);
    return counts;
  };
  EXPECT_THAT(dropped(11), ElementsAre(0, 0, 0));
  EXPECT_THAT(dropped(9), ElementsAre(0, 2, 0)) << "of 10 tokens, 9 are inputs; a generation leaves room for 3";
  EXPECT_THAT(dropped(5), ElementsAre(4, 6, 0));
}

TEST(RequestTokens, RollingWindowsPredictEveryTokenOnce) {
  EXPECT_THAT(rolling_windows(0, 4), IsEmpty());
  EXPECT_THAT(rolling_windows(3, 4), ElementsAre(RollingWindow{0, 3, 1}));
  EXPECT_THAT(rolling_windows(9, 4), ElementsAre(RollingWindow{0, 4, 1}, RollingWindow{4, 4, 1}, RollingWindow{8, 1, 4}));
  const std::vector<int64_t> text{10, 11, 12, 13, 14};
  EXPECT_THAT(window_tokens({0, 4, 1}, text, kEnd).context, ElementsAre(kEnd));
  EXPECT_THAT(window_tokens({4, 1, 4}, text, kEnd).context, ElementsAre(10, 11, 12, 13));
  EXPECT_THAT(window_tokens({4, 1, 4}, text, kEnd).continuation, ElementsAre(14));
}

TEST(RequestTokens, TextsEndBeforeTheFirstStopString) {
  EXPECT_EQ(cut_at_stops("aXbYc", {"Y", "X"}), "a");
  EXPECT_EQ(cut_at_stops("a\nb", stop_strings({"\n"})), "a");
  EXPECT_EQ(cut_at_stops("ab<|endoftext|>c", stop_strings({})), "ab");
  EXPECT_THAT(stop_strings({"<|endoftext|>"}), ElementsAre("<|endoftext|>"));
}

}  // namespace request_tokens_test
}  // namespace based
