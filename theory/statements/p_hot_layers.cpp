#include "theory/degree.h"
#include "theory/recall.h"
#include "theory/recall_program.h"
#include "theory/statements/block_recall_trials.h"
#include "theory/statements/encodings.h"

namespace based::theory {
namespace p_hot_layers_statement {

// One change in each block of the query and the key, and one in the value's first block, which contains the answer's bit.
void try_degree(Trial& trial, const PHot& encoding) {
  std::vector<Change> changes;
  const int64_t width = encoding.block_width();
  std::vector<int64_t> last(static_cast<size_t>(width)), first(static_cast<size_t>(width));
  last.back() = 1, first.front() = 1;
  for (int64_t block = 0; block <= 2 * encoding.blocks; ++block) changes.push_back({block * width, last, first});
  std::vector<int64_t> input;
  for (int token = 0; token < 3; ++token) {
    const auto row = encoding.encode(0);
    input.insert(input.end(), row.begin(), row.end());
  }
  trial.count(int64_t{1} << changes.size());
  trial.require(mixed_difference(input, changes, recall_bit(encoding.width(), 1, 0, Matches::first)) != 0,
                text_of(encoding) + ": a degree of 2p is not excluded");
}

void verify(Trial& trial) {
  trial.size("degree: p ≤ 8, bases ≤ 4; programs: c ≤ 27, ≤ 4 keys");
  for (int64_t blocks = 1; blocks <= (trial.quick() ? 5 : 8); ++blocks)  // 2^(2·blocks + 1) inputs
    for (int64_t base = 2; base <= 4; ++base) try_degree(trial, {blocks, base});
  for (const PHot& encoding : encodings(27, false)) try_recall(trial, encoding, 4, "at least ⌊log(2p)⌋");
  for (const int64_t blocks : {1, 2, 3, 4, 6, 8, 16, 32}) {
    const int64_t built = block_mqar({blocks, 2}, 2).depth(), one = block_recall({blocks, 2}, 1).depth();
    const int64_t printed = ceil_log2(2 * blocks + 1) - 1, bound = least_layers(2 * blocks + 1);
    trial.require(printed < bound && bound <= one && one <= bound + 4 && built == one + 2,
                  "p = " + std::to_string(blocks) + ": layers " + std::to_string(built));
    trial.note("p = " + std::to_string(blocks) + ": ⌊log(2p)⌋ = " + std::to_string(printed) + ", by the degree " + std::to_string(bound) +
               "; built at any N " + std::to_string(built) + ", for one query " + std::to_string(one));
  }
  for (const int64_t n : {8, 32})
    trial.note("p = 1, c = N = " + std::to_string(n) + ": the upper bound's program (N, L, d, N', d') = " + recall_program({n, n}).tuple() +
               ", this one, of 3N² rows, " + block_mqar({1, n}, n).tuple());
  const PHot hot{1, 2};
  const Polynomial one(1), block = Polynomial::variable(0) + Polynomial::variable(1);
  bool same = true;
  for (int64_t token = 0; token < 2; ++token) same = same && block.evaluate(hot.encode(token)) == one.evaluate(hot.encode(token));
  trial.correct({"the bound takes uniqueness of the polynomial from the almost p-hot encoding",
                 "in the p-hot encoding 1 and u0 + u1 are block-exclusive and equal on both tokens (p = 1, c = 2)",
                 "no uniqueness is needed: the mixed difference excludes every polynomial of a lower degree"},
                same && block != one && block.is_block_exclusive(blocks_of(block_widths(hot, 1))));
  trial.note("a bit of the value is a factor too: the degree is 2p + 1 and not 2p, the bound ⌈log(2p + 1)⌉ = ⌊log(2p)⌋ + 1");
}

Example example() {
  const PHot two_hot = p_hot(9, 2);
  return {block_recall(two_hot, 2), encoded(two_hot, {4, 8, 2, 1, 2}),
          "2-hot tokens of 9: keys 4 and 2 with values 8 and 1; the query is 2."};
}

}  // namespace p_hot_layers_statement

extern const Statement statement_p_hot_layers{"p_hot_layers", "Theorem 'mqar-phot'",          "MQAR of p-hot tokens needs ⌊log(2p)⌋ layers",
                                              644'132,        p_hot_layers_statement::verify, p_hot_layers_statement::example};

}  // namespace based::theory
