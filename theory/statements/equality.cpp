#include "theory/recall.h"
#include "theory/statements/block_recall_trials.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace equality_statement {

std::vector<int64_t> ones(int64_t width) { return std::vector<int64_t>(static_cast<size_t>(width), 1); }

// A token whose encoding has a 1. In an almost p-hot encoding one token is all zeros, which is indistinguishable from no match.
int64_t value_token(const PHot& encoding) {
  int64_t token = 0;
  while (std::ranges::count(encoding.encode(token), 1) == 0) ++token;
  return token;
}

// Tries all pairs: the answer to the second query of (u₁, t, u₁), (u₂, t, u₂) is t's encoding if u₁ = u₂, and zeros otherwise, both by the
// definition and by layers.
void try_pairs(Trial& trial, const PHot& encoding) {
  const int64_t value = value_token(encoding);
  const auto answer = encoding.encode(value);
  const Program program = block_recall(encoding, 1);
  trial.layers(program.depth(), "as MQAR's");
  for (int64_t first = 0; first < encoding.tokens(); ++first) {
    for (int64_t second = 0; second < encoding.tokens(); ++second) {
      const auto instance = equality_instance(encoding.encode(first), encoding.encode(second), answer);
      const auto found = recall(instance, 1, Reach::before, Matches::first);
      const auto expected = first == second ? answer : std::vector<int64_t>(answer.size());
      trial.require(found == expected, text_of(encoding) + ": tokens " + std::to_string(first) + " and " + std::to_string(second));
      recalls(trial, program, encoding, {first, value, second});
    }
  }
}

void try_printed(Trial& trial) {
  const PHot two_hot = p_hot(16, 2);
  trial.count();
  trial.correct({"the values are 𝟙, in every encoding",
                 "𝟙 is no token of the 2-hot encoding of 16 tokens, nor of any p-hot one: the instance is none of MQAR",
                 "any token's encoding with a 1 in it, of which one bit is read"},
                !two_hot.decode(ones(two_hot.width())) && two_hot.decode(two_hot.encode(value_token(two_hot))));

  const PHot compact{2, 2, true};
  const auto instance = equality_instance(compact.encode(0), compact.encode(1), ones(2));
  const bool different_before = recall(instance, 1, Reach::before, Matches::first) == std::vector<int64_t>{0, 0};
  const bool same_with_itself = recall(instance, 1, Reach::up_to_itself, Matches::first) == std::vector<int64_t>{1, 1};
  auto repaired = instance;
  repaired.values[1] = {0, 0};
  const bool repaired_tells = recall(repaired, 1, Reach::up_to_itself, Matches::sum) == std::vector<int64_t>{0, 0};
  trial.count(3);
  trial.correct({"(u₁, 𝟙, u₁), (u₂, 𝟙, u₂), whatever keys a query may match",
                 "where a query may match its own key (j ≤ i, as the upper bound's setup has it) u₁ ≠ u₂ gets 𝟙 from key 2",
                 "the second value is a row of zeros; with j < i the instance holds as it is"},
                different_before && same_with_itself && repaired_tells);
}

void verify(Trial& trial) {
  trial.size("all pairs, all p and bases, c ≤ 27");
  for (const bool almost : {false, true})
    for (const PHot& encoding : encodings(27, almost)) try_pairs(trial, encoding);
  try_printed(trial);
}

Example example() {
  const PHot two_hot = p_hot(4, 2);
  return {block_recall(two_hot, 1), encoded(two_hot, {3, 0, 3}),
          "Are tokens 3 and 3 equal? As recall: key 3 with value 0, then the query 3."};
}

}  // namespace equality_statement

extern const Statement statement_equality{"equality",
                                          "Proposition 'eq_mqar', Corollary 'eq-mqar-lower'",
                                          "what solves MQAR tells whether two tokens are equal, with the same layers",
                                          17'916,
                                          equality_statement::verify,
                                          equality_statement::example};

}  // namespace based::theory
