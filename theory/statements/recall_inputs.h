// Recall instances as token numbers: random ones, adversarial ones, or all instances of a size.
#pragma once
#include <functional>
#include <vector>

#include "based/core/random.h"
#include "theory/recall_program.h"
#include "theory/statement.h"
#include "theory/tape.h"

namespace based::theory {

struct Tokens {
  std::vector<int64_t> queries, keys, values;  // N each, 0 … d-1

  // For each query, the value of the only key up to its row that it matches, or -1.
  std::vector<int64_t> answers() const;
  bool one_match() const;                   // whether no query matches two keys up to its row
  IntMatrix one_hot(int64_t tokens) const;  // Q, K and V stacked vertically, [3N, d]
};

// `kind` 0 has mostly distinct keys and arbitrary queries. The others are adversarial: queries for the newest or the oldest key, for keys
// that come later, for keys that are repeated later, for no key, only equal queries, and frequent keys without queries.
inline constexpr int64_t kTokenKinds = 8;
// Requires sizes.tokens ≥ 2.
Tokens draw_tokens(Random& random, const RecallSizes& sizes, int64_t kind);

// Calls `seen` for every instance of these sizes, including those with several matches.
void for_all_tokens(const RecallSizes& sizes, const std::function<void(const Tokens&)>& seen);

// Runs a program on instances, 64 at a time, and compares its output with the answers.
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
