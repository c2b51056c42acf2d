#include "theory/linear_attention.h"

#include "theory/integers.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace linear_attention_statement {

LinearAttention draw(Random& random, Size size, int64_t feature_dim, bool causal) {
  const auto projection = [&](int64_t columns) {
    return LinearProjection{random_matrix(random, {size.columns, columns}, -2, 2), random_matrix(random, {size.rows, columns}, -2, 2)};
  };
  return {size, feature_dim, projection(feature_dim), projection(feature_dim), projection(size.columns), causal};
}

std::string text_of(const LinearAttention& attention) {
  return "N = " + std::to_string(attention.size.rows) + ", d = " + std::to_string(attention.size.columns) +
         ", d' = " + std::to_string(attention.feature_dim) + (attention.causal ? ", causal" : "");
}

void try_drawn(Trial& trial) {
  trial.size("any weights, N ≤ 12, d ≤ 4, d' ≤ 4");
  Random random(47);
  for (int k = 0; k < kSizes; ++k) {
    const Size size{random.between(1, 12), random.between(1, 4)};
    const LinearAttention attention = draw(random, size, random.between(1, 4), k % 2 == 1);
    const Program program = linear_attention_program(attention);
    trial.layers(program.depth(), "O(log²(Nd))");
    if (attention.causal)
      trial.require(std::ranges::all_of(program.layers, &Layer::causal), text_of(attention) + ": a layer is not causal");
    for (int input = 0; input < kInputs; ++input) {
      const IntMatrix u = random_matrix(random, size, -3, 3);
      if (!trial.compare(program, u, linear_attention(attention, u), text_of(attention))) return;
    }
  }
}

void try_all(Trial& trial) {
  trial.size("all inputs of -1 … 1, N d ≤ 6");
  Random random(53);
  for (const Size size : {Size{2, 1}, Size{3, 1}, Size{2, 2}, Size{6, 1}, Size{3, 2}}) {
    const LinearAttention attention = draw(random, size, 2, false);
    const Program program = linear_attention_program(attention);
    IntMatrix u(size, -1);
    for (size_t carry = 0; carry < u.cells.size();) {
      if (!trial.compare(program, u, linear_attention(attention, u), text_of(attention))) return;
      for (carry = 0; carry < u.cells.size() && ++u.cells[carry] > 1; ++carry) u.cells[carry] = -1;
    }
  }
}

void verify(Trial& trial) {
  try_drawn(trial);
  try_all(trial);
  Random random(59);
  for (const auto& [rows, columns, feature_dim] : {std::tuple<int64_t, int64_t, int64_t>{16, 4, 4}, {256, 4, 4}, {256, 16, 8}}) {
    const LinearAttention attention = draw(random, {rows, columns}, feature_dim, false);
    const Program program = linear_attention_program(attention);
    const int64_t claimed_rows = rows * (columns + feature_dim * feature_dim),
                  claimed_columns = std::max(columns, feature_dim * feature_dim);
    trial.note(text_of(attention) + ": built " + program.tuple() + ", claimed (N, O(" +
               std::to_string(ceil_log2(rows * columns) * ceil_log2(rows * columns)) + "), d, O(" + std::to_string(claimed_rows) + "), O(" +
               std::to_string(claimed_columns) + "))");
  }
  trial.note(
      "the sum over keys is a filter, the sum over features a projection, so that no circuit is needed: 5 layers at any size, with N' = N "
      "rows and O(d d'²) columns: fewer rows than claimed and more columns");
}

Example example() {
  Random random(61);
  const LinearAttention attention = draw(random, {3, 1}, 1, true);
  return {linear_attention_program(attention), random_matrix(random, {3, 1}, -2, 2),
          "Causal, one feature: columns are q, k, q², k² and the three terms of a row."};
}

}  // namespace linear_attention_statement

extern const Statement statement_linear_attention{"linear_attention",
                                                  "Proposition 'based-sim'",
                                                  "linear attention is O(log²(Nd)) layers of BaseConv",
                                                  5575,
                                                  linear_attention_statement::verify,
                                                  linear_attention_statement::example};

}  // namespace based::theory
