#include <cmath>

#include "theory/integers.h"
#include "theory/statements/recall_inputs.h"

namespace based::theory {
namespace mqar_statement {

constexpr int64_t kDrawn = 100'000;  // random instances of each larger size; a hundredth of them in quick trials
constexpr int64_t kWhole = 20;       // instances that run through all layers instead of the traced program; 2 for the largest size
constexpr int64_t kQuick = 20'000;   // in quick trials, all instances of a size are tried only if there are at most this many
constexpr int64_t kSmall = 16;       // the largest random N and d in quick trials

std::string text_of(const RecallSizes& sizes) { return std::to_string(sizes.length) + "x" + std::to_string(sizes.tokens); }

// Reports the constants of O(log log N̄) layers and of the inner dimension O(N̄ log N̄).
void count_layers(Trial& trial, const RecallSizes& sizes, const Program& program) {
  const int64_t longest = std::max(sizes.length, sizes.tokens), bits = ceil_log2(longest + 1), rounds = ceil_log2(bits);
  trial.layers(program.depth(), "O(log log N̄)");
  trial.require(program.depth() <= 80 + 4 * rounds, "more than 80 + 4⌈log⌈log(N̄ + 1)⌉⌉ layers");
  trial.require(program.inner.rows <= 20 * longest * bits + 30 * longest, "more rows than 20·N̄·⌈log(N̄ + 1)⌉ + 30·N̄");
  trial.require(program.inner.columns <= longest * bits, "more columns than N̄·⌈log(N̄ + 1)⌉");
}

void try_all(Trial& trial) {
  for (const auto& [length, tokens] :
       {std::pair<int64_t, int64_t>{1, 8}, {2, 2}, {2, 3}, {3, 2}, {3, 3}, {2, 8}, {3, 4}, {4, 2}, {4, 3}, {5, 2}}) {
    const RecallSizes sizes{length, tokens};
    if (trial.quick() && std::pow(tokens, 3 * length) > kQuick) continue;
    const Program program = recall_program(sizes);
    count_layers(trial, sizes, program);
    RecallCheck check(trial, sizes, program);
    for_all_tokens(sizes, [&](const Tokens& instance) {
      if (instance.one_match()) check.add(instance);
    });
    check.finish();
    trial.size(text_of(sizes));
  }
}

void try_drawn(Trial& trial, const RecallSizes& sizes) {
  Random random(7, static_cast<uint64_t>(sizes.length));
  const Program program = recall_program(sizes);
  count_layers(trial, sizes, program);
  for (int64_t k = 0; k < (sizes.length > 32 ? 2 : kWhole); ++k) {
    const Tokens instance = draw_tokens(random, sizes, k % kTokenKinds);
    const IntMatrix input = instance.one_hot(sizes.tokens);
    trial.compare(program, input, recall_by_definition(sizes, input), program.tuple());
  }
  RecallCheck check(trial, sizes, program);
  for (int64_t k = 0; k < (trial.quick() ? kDrawn / 100 : kDrawn); ++k) check.add(draw_tokens(random, sizes, k % kTokenKinds));
  check.finish();
  trial.size(text_of(sizes));
}

// Compares the number of layers with ⌈log log N̄⌉ for growing N̄. The largest programs are built but not run.
void count_growth(Trial& trial) {
  for (int64_t n = 8; n <= (trial.quick() ? 2 * kSmall : kMaxRecall); n *= 2) {
    const RecallSizes sizes{n, n};
    const Program program = recall_program(sizes);
    count_layers(trial, sizes, program);
    const int64_t rounds = ceil_log2(ceil_log2(n));
    trial.note("N̄ = " + std::to_string(n) + ": (N, L, d, N', d') = " + program.tuple() + ", ⌈log log N̄⌉ = " + std::to_string(rounds) +
               ", L - 4⌈log log N̄⌉ = " + std::to_string(program.depth() - 4 * rounds) + ", " + std::to_string(program.parameters()) +
               " parameters are not 0 of " + std::to_string(program.all_parameters()));
  }
}

void verify(Trial& trial) {
  try_all(trial);
  for (const auto& [length, tokens] : {std::pair<int64_t, int64_t>{8, 8}, {16, 16}, {12, 31}, {31, 12}, {32, 32}, {64, 64}})
    if (!trial.quick() || std::max(length, tokens) <= kSmall) try_drawn(trial, {length, tokens});
  count_growth(trial);
  trial.note("layers built: 80 + 3⌈log b⌉ + ⌈log b̄⌉, so 80 + 4⌈log⌈log(N̄ + 1)⌉⌉ at most");
}

Example example() {
  const RecallSizes sizes{2, 2};
  const Tokens tokens{{1, 0}, {0, 1}, {1, 1}};
  return {
      recall_program(sizes), tokens.one_hot(2),
      "Queries, keys and values of two tokens below each other: the second query finds the first key, whose value is the second token."};
}

}  // namespace mqar_statement

extern const Statement statement_mqar{
    "mqar",    "Theorem 'MQAR:math'",  "recall of one-hot tokens, one match a query, in O(log log N̄) layers",
    1'295'908, mqar_statement::verify, mqar_statement::example};

}  // namespace based::theory
