#include "theory/integers.h"
#include "theory/statements/recall_inputs.h"

namespace based::theory {
namespace recall_values_statement {

IntMatrix with_values(const Tokens& tokens, const IntMatrix& values) {
  IntMatrix input = tokens.one_hot(values.size.columns);
  std::copy(values.cells.begin(), values.cells.end(), input.row(2 * values.size.rows));
  return input;
}

void try_printed(Trial& trial) {
  const RecallSizes sizes{2, 3};
  IntMatrix values({2, 3});
  values.cells = {1, 1, 0, 0, 1, 0};
  const IntMatrix input = with_values({{2, 0}, {0, 1}, {0, 0}}, values), expected = recall_by_definition(sizes, input);
  const IntMatrix found = corner(run(recall_program(sizes), input), expected.size);
  trial.correct({"assumptions (i) and (ii), of Q, K and the matches, are all that steps 4 to 8 need",
                 "a query whose value is " + row_text(expected, 1) + " is answered " + row_text(found, 1) +
                     ": the bits of two columns are taken for one number",
                 "values must be one-hot, too (or all zero); or each entry gets a column of its own, and step 8.2 goes"},
                found != expected);
}

void verify(Trial& trial) {
  try_printed(trial);
  Random random(5);
  const int drawn = trial.quick() ? 40 : 400;
  for (const auto& [length, tokens] : {std::pair<int64_t, int64_t>{2, 3}, {5, 4}, {8, 8}, {12, 6}}) {
    const RecallSizes sizes{length, tokens, ValueCode::plain};
    const Program program = recall_program(sizes);
    trial.layers(program.depth(), "O(log log N̄)");
    trial.require(program.depth() == 73 + 3 * ceil_log2(sizes.key_bits()), "not 73 + 3⌈log b⌉ layers");
    trial.size(std::to_string(length) + "x" + std::to_string(tokens));
    for (int k = 0; k < drawn; ++k) {
      const IntMatrix input = with_values(draw_tokens(random, sizes, k % kTokenKinds), random_matrix(random, {length, tokens}, -9, 9));
      if (!trial.compare(program, input, recall_by_definition(sizes, input), program.tuple())) return;
    }
    trial.require(program.inner.columns >= length * tokens, "less than N·d columns");
  }
  trial.note("with any integers as values the matrices are N·d wide, more than O(N̄ log N̄)");
}

}  // namespace recall_values_statement

extern const Statement statement_recall_values{"recall_values", "Theorem 'MQAR:math', steps 4 to 8",
                                               "recall of values that are not one-hot, in O(log log N̄) layers", 1600,
                                               recall_values_statement::verify};

}  // namespace based::theory
