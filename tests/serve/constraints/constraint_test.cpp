#include "based/serve/constraints/constraint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"

namespace based {
namespace constraint_test {

using testing::HasSubstr;

std::string refusal(const std::string& pattern) {
  try {
    compile_regex(pattern, "guided_regex");
    return "accepted";
  } catch (const UsageError& error) {
    return error.what();
  }
}

// Expected values are those of Python's re.fullmatch with re.ASCII.
TEST(Regex, MatchesWholeTexts) {
  struct Row {
    std::string pattern;
    std::vector<std::string> matches, others;
  };
  const std::vector<Row> rows{
      {"a|bc", {"a", "bc"}, {"b", "abc", ""}},
      {"[0-9]{3}-\\d{4}", {"555-1234"}, {"5551234", "555-12345"}},
      {"(yes|no)?!*", {"", "yes!!", "no"}, {"maybe", "yesno"}},
      {"^\\w+@\\w+\\.com$", {"me@x.com"}, {"me@x_com"}},
      {".*", {"", "\u00e4\u00f6\U0001f600"}, {"a\nb", "\xff"}},
      {"[^a-c]", {"x", "\u00e9", "\n", "\U0010ffff"}, {"a", "", "\xc3"}},
      {"(a*)*b", {"aaab", "b"}, {"c", "a"}},
      {"(?:x{2,3}){2}", {"xxxx", "xxxxx", "xxxxxx"}, {"xxx", "xxxxxxx"}},
      {"a{,3}", {"", "aaa"}, {"aaaa"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"[\u0800-\U0001ffff]", {"\u0800", "\U0001f600", "\uffff", "\ud7ff"}, {"\u00e9", "\U00020000", "\xed\xa0\x80"}},
      {"\\{\"k\": ?\\d+\\}", {"{\"k\": 12}", "{\"k\":1}"}, {"{\"k\":}"}},
      {"[]a-]+", {"]a-"}, {"b"}},
      {"(?P<n>a)b??c+?", {"ac", "abcc"}, {"ab"}},
      {"\\S\\s\\D\\W", {"a b!"}, {"a 1!"}},
      {"\\u00e9\\x41\\t", {"\u00e9A\t"}, {"eA\t"}},
  };
  for (const Row& row : rows) {
    const ByteAutomaton automaton = compile_regex(row.pattern, "guided_regex");
    for (const std::string& text : row.matches) EXPECT_TRUE(automaton.matches(text)) << row.pattern << " " << text;
    for (const std::string& text : row.others) EXPECT_FALSE(automaton.matches(text)) << row.pattern << " " << text;
  }
}

TEST(Regex, RefusesWhatItDoesNotSupport) {
  const std::map<std::string, std::string> rows{
      {"(", "'(' without ')'"},
      {")", "')' without '('"},
      {"a**", "repetition of a repetition"},
      {"[a", "'[' without ']'"},
      {"(a)\\1", "\\1 is not supported"},
      {"(?=a)", "lookaround"},
      {"a{3,2}", "below its smallest"},
      {"*a", "nothing to repeat"},
      {"\\ba", "\\b is not supported"},
      {"[b-a]", "below its start"},
      {"a$b", "'$'"},
      {"a^", "'^'"},
      {"a\\", "backslash at the end"},
      {"\\ud800", "surrogate"},
      {"x{", "a literal brace"},
      {"\xff", "not UTF-8"},
  };
  for (const auto& [pattern, reason] : rows) {
    EXPECT_THAT(refusal(pattern), HasSubstr(reason)) << pattern;
    EXPECT_THAT(refusal(pattern), HasSubstr("guided_regex: ")) << pattern;
  }
}

TEST(Regex, IsBounded) {
  EXPECT_THAT(refusal(std::string(16 * 1024 + 1, 'a')), HasSubstr("at most 16384"));
  EXPECT_THAT(refusal(std::string(1000, '(') + std::string(1000, ')')), HasSubstr("more than 64 nested groups"));
  EXPECT_THAT(refusal("a{1001}"), HasSubstr("more than 1000"));
  EXPECT_THAT(refusal("(a{1000}){1000}"), HasSubstr("too large"));
  EXPECT_THAT(refusal("((((){1000}){1000}){1000}){1000}"), HasSubstr("too large"));
  EXPECT_THAT(refusal("(.*a.{30}){2}"), HasSubstr("too complex"));
  EXPECT_EQ(refusal(".{1,1000}"), "accepted");
}

BpeTokenizer words() {
  BpeTrainer trainer({.vocab_size = 400, .min_frequency = 1, .specials = {"<|endoftext|>"}});
  trainer.add("yes no maybe 2024-01-31 2025-12-24 yes, the naïve café 0123456789 yesterday nobody");
  return BpeTokenizer(trainer.train());
}

bool allowed(std::span<const uint64_t> mask, int32_t id) { return (mask[static_cast<size_t>(id) / 64] >> id % 64 & 1U) != 0; }

// The mask of every state that a greedy choice of tokens reaches against a walk through each token's bytes.
TEST(Constraint, MasksAreThoseOfEachTokensBytes) {
  const BpeTokenizer tokenizer = words();
  const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  for (const char* pattern : {"(yes|no)(, [^a-m]*)?", "\\d{4}-\\d{2}-\\d{2}", ".*", "[\u00e0-\u00ff]+ .", "caf\u00e9"}) {
    const std::shared_ptr<Constraint> constraint = Constraint::from_regex(trie, pattern, "guided_regex");
    const ByteAutomaton& automaton = constraint->automaton();
    int64_t permitted = 0;
    for (int32_t state = 0; state < automaton.states(); ++state) {
      const std::span<const uint64_t> mask = constraint->mask(state);
      for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        bool expected = automaton.accepting(state);
        if (!tokenizer.is_special(id)) {
          int32_t at = state;
          for (const char c : tokenizer.token_bytes(id))
            if (at != ByteAutomaton::kDead) at = automaton.next(at, static_cast<uint8_t>(c));
          expected = at != ByteAutomaton::kDead;
        }
        EXPECT_EQ(allowed(mask, id), expected) << pattern << " state " << state << " id " << id;
        permitted += expected ? 1 : 0;
      }
    }
    EXPECT_GE(permitted, automaton.states()) << "no state is without a token";
  }
}

TEST(Constraint, ASequenceEndsOnlyWhereTheTextIsComplete) {
  const BpeTokenizer tokenizer = words();
  const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  const int32_t end = *tokenizer.end_of_text();
  const std::vector<std::string> choices{"yes", "yes, the", "no"};
  ConstrainedSequence sequence(Constraint::from_choices(trie, choices, "guided_choice"));
  EXPECT_FALSE(allowed(sequence.mask(), end));
  EXPECT_FALSE(sequence.advance(end));
  EXPECT_FALSE(sequence.advance(-1));
  EXPECT_FALSE(sequence.advance(static_cast<int32_t>(tokenizer.vocab_size())));
  EXPECT_FALSE(sequence.advance(tokenizer.encode("maybe").front()));
  for (const int32_t id : tokenizer.encode("yes")) {
    EXPECT_TRUE(allowed(sequence.mask(), id));
    ASSERT_TRUE(sequence.advance(id));
  }
  EXPECT_TRUE(allowed(sequence.mask(), end));
  EXPECT_TRUE(sequence.accepting() && !sequence.complete());
  for (const int32_t id : tokenizer.encode(", the")) ASSERT_TRUE(sequence.advance(id));
  EXPECT_TRUE(sequence.complete());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) EXPECT_EQ(allowed(sequence.mask(), id), id == end) << id;
}

TEST(Constraint, ChoicesAreBounded) {
  const ByteTokenizer tokenizer;
  const auto trie = std::make_shared<const TokenTrie>(tokenizer);
  const auto from = [&](const std::vector<std::string>& choices) { return Constraint::from_choices(trie, choices, "guided_choice"); };
  EXPECT_THROW(from({}), UsageError);
  EXPECT_THROW(from({"a", ""}), UsageError);
  EXPECT_THROW(from(std::vector<std::string>(1025, "a")), UsageError);
  EXPECT_THROW(from({std::string(16 * 1024 + 1, 'a')}), UsageError);
  EXPECT_TRUE(from({std::string(16 * 1024, 'a')})->automaton().matches(std::string(16 * 1024, 'a')));
}

}  // namespace constraint_test
}  // namespace based
