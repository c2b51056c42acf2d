// Stop strings that tokens cut, and characters that a limit cuts: the streamed pieces are the text.
#include "based/generate/text_stream.h"

#include <gtest/gtest.h>

#include "based/generate/text_generator.h"
#include "tests/generate/texts.h"

namespace based {
namespace text_stream_test {

// The text before the stop string that is complete first; of several that end there, before the longest.
std::string before_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t length = 1; length <= text.size(); ++length) {
    const std::string so_far = text.substr(0, length);
    size_t first = so_far.size();
    for (const std::string& stop : stops) first = std::min(first, so_far.find(stop));
    if (first < so_far.size()) return so_far.substr(0, first);
  }
  return text;
}

// The byte tokenizer's tokens cut every string.
TEST(TextStreamStops, OfManyStringsTheFirstCompleteOneEndsTheText) {
  const ByteTokenizer bytes;
  std::vector<std::string> stops;
  for (int i = 0; i < 20; ++i) stops.push_back(std::string(1 + static_cast<size_t>(i % 5), static_cast<char>('a' + i)) + "!");
  stops.insert(stops.end(), {"\n\n", "END OF", "E\xC3\xA9!", "ND"});
  for (const std::string text : {"nothing stops this", "aa b! c", "tttt! and more", "an E, an EN, an END OF it",
                                 "caf\xC3\xA9 E\xC3\xA9 E\xC3\xA9! x", "line\n\nline", "!", "a!", "E END", "ttttt!"}) {
    TextStream stream(bytes, stops);
    std::string streamed;
    for (const char c : text) {
      streamed += stream.push(static_cast<unsigned char>(c));
      ASSERT_EQ(before_stop(text, stops).substr(0, streamed.size()), streamed) << "no part of a stop string may come: " << text;
    }
    streamed += stream.finish();
    EXPECT_EQ(streamed, before_stop(text, stops)) << text;
    EXPECT_EQ(stream.stopped(), streamed != text) << text;
  }
}

// A longer stop string that only may come does not hide a shorter one that has come.
TEST(TextStreamStops, AShortStringWithinALongerOneStops) {
  const ByteTokenizer bytes;
  TextStream stream(bytes, {"bcdef", "cd"});
  std::string streamed;
  for (const char c : std::string("abcdx")) streamed += stream.push(static_cast<unsigned char>(c));
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(streamed + stream.finish(), "ab");
}

// Random weights generate any bytes, so that max_tokens cuts characters. The pieces, the text and the tokens' bytes must agree.
TEST(TextStreamCharacters, ATextThatALimitCutsIsThatOfItsPiecesAndTokens) {
  const auto model = distinct_model(torch::kCPU);
  const ByteTokenizer bytes;
  Engine engine(*model, {.slots = 4});
  TextGenerator generator(engine, bytes);
  std::map<int64_t, std::string> pieces;
  std::map<int64_t, GeneratedText> texts;
  for (int64_t i = 0; i < 24; ++i) {
    SamplingOptions sampling{.temperature = 0.8, .seed = i};
    for (int64_t id = 0; id < 256; ++id)
      sampling.logit_bias.emplace_back(id, id >= 0xC2 && id <= 0xDF ? 40 : id >= 0x80 && id <= 0xBF ? 38 : 0);
    generator.add({.ids = some_text(5, i), .options = {.sampling = sampling, .max_tokens = 1 + i % 6}});
  }
  while (!generator.idle())
    generator.step([&](int64_t sequence, const std::string& piece) { pieces[sequence] += piece; },
                   [&](int64_t sequence, GeneratedText text) { texts[sequence] = std::move(text); });
  int64_t cut = 0;
  for (const auto& [sequence, text] : texts) {
    EXPECT_EQ(pieces[sequence], text.text) << sequence;
    const std::vector<int32_t> ids(text.ids.begin(), text.ids.end() - (text.finish_reason == "end_of_text" ? 1 : 0));
    EXPECT_EQ(text.text, bytes.decode(ids)) << sequence;
    cut += !text.text.empty() && static_cast<unsigned char>(text.text.back()) >= 0xC2 ? 1 : 0;
  }
  EXPECT_EQ(texts.size(), 24U);
  EXPECT_GT(cut, 0) << "a text ends within a character";
}

}  // namespace text_stream_test
}  // namespace based
