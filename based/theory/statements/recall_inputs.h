// Recall instances, as token numbers: drawn at random, made to be awkward, or all that there are.
#pragma once
#include <functional>
#include <vector>

#include "based/core/random.h"
#include "based/theory/recall_program.h"
#include "based/theory/statement.h"
#include "based/theory/tape.h"

namespace based::theory {

struct Tokens {
  std::vector<int64_t> queries, keys, values;  // N each, 0 … d-1

  // For each query the value of the one key that it matches, of those up to its row, or -1.
  std::vector<int64_t> answers() const;
  bool one_match() const;                   // no query matches two keys up to its row
  IntMatrix one_hot(int64_t tokens) const;  // Q, K, V below each other, [3N, d]
};

// `kind` 0: keys that mostly differ, any queries. The others are awkward: queries of the newest or the oldest key, of keys that come later,
// of keys that come again later, of none, all alike, and keys that come often and are not asked for.
inline constexpr int64_t kTokenKinds = 8;
// At least two tokens.
Tokens draw_tokens(Random& random, const RecallSizes& sizes, int64_t kind);

// Calls `seen` for every instance of N and d, also those with several matches.
void for_all_tokens(const RecallSizes& sizes, const std::function<void(const Tokens&)>& seen);

// Puts instances through a program, 64 at a time, and compares what comes out with the answers.
class RecallCheck {
 public:
  RecallCheck(Trial& trial, const RecallSizes& sizes, const Program& program);
  void add(const Tokens& tokens);
  void finish();

 private:
  Trial* trial_;
  RecallSizes sizes_;
  std::string tuple_;
  Traced traced_;
  std::vector<Tokens> batch_;
  std::vector<Lanes> inputs_, outputs_;
};

}  // namespace based::theory
