#include "theory/integers.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace relu_attention_statement {

IntMatrix multiply(const IntMatrix& a, const IntMatrix& b) {
  BASED_ASSERT(a.size.columns == b.size.rows);
  IntMatrix c({a.size.rows, b.size.columns});
  for (int64_t i = 0; i < a.size.rows; ++i)
    for (int64_t k = 0; k < a.size.columns; ++k)
      for (int64_t j = 0; j < b.size.columns; ++j) c.at(i, j) = Integers::sum(c.at(i, j), Integers::product(a.at(i, k), b.at(k, j)));
  return c;
}

// ReLU(a + bias) with a bias for every entry.
IntMatrix relu(IntMatrix a, const std::function<int64_t(int64_t, int64_t)>& bias) {
  for (int64_t i = 0; i < a.size.rows; ++i)
    for (int64_t j = 0; j < a.size.columns; ++j) a.at(i, j) = std::max<int64_t>(0, a.at(i, j) + bias(i, j));
  return a;
}

IntMatrix square(int64_t rows, const std::function<int64_t(int64_t, int64_t)>& entry) {
  IntMatrix matrix({rows, rows});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < rows; ++j) matrix.at(i, j) = entry(i, j);
  return matrix;
}

enum class Form { repaired, no_positions, no_causality, w2_as_printed };

// Attention with ReLU and two MLPs over positions. `u` [3N, d] has rows of bits: key, value, query, key, …. In the result, a query's row is
// the value of the first earlier key that equals the query, as -1 and 1, or zeros.
std::vector<Frame> recall_by_layers(const IntMatrix& u, Form form) {
  const auto [rows, d] = u.size;
  IntMatrix w = u, transposed({d, rows});
  for (int64_t& entry : w.cells) entry = 2 * entry - 1;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < d; ++j) transposed.at(j, i) = w.at(i, j);
  // Layer 1, attention: 1 if a query equals an earlier key. The bias of the scores excludes all other pairs.
  const IntMatrix z = relu(multiply(w, transposed), [&, form, d = d](int64_t i, int64_t j) {
    const bool pair = form == Form::no_positions || (i % 3 == 2 && j % 3 == 0);
    const bool before = form == Form::no_causality || j / 3 < i / 3;
    return pair && before ? 1 - d : -2 * d;
  });
  // Layer 2: 1 up to the first match.
  const IntMatrix suffix = square(rows, [](int64_t k, int64_t j) { return k >= j; });
  const IntMatrix minus_first = square(rows, [&](int64_t k, int64_t j) -> int64_t {
    if (form == Form::w2_as_printed) return j == 0 ? -1 : k == j;
    return k == 0 ? (j == 0 ? 0 : -1) : k == j;
  });
  const IntMatrix prefix = relu(multiply(multiply(z, suffix), minus_first), [](int64_t, int64_t) { return 1; });
  // Layer 3: only the first match, moved to the next row, which is the value's.
  const IntMatrix step = square(rows, [](int64_t k, int64_t j) { return j == 0 ? 0 : k == j - 1 ? 1 : k == j ? -1 : 0; });
  return {{"input", u},
          {"attention with ReLU: 1 where a query, the row, is equal to an earlier key, the column", z},
          {"an MLP over columns: 1 up to the first match", prefix},
          {"an MLP over columns, times the inputs as -1 and 1: the first match's value", multiply(multiply(prefix, step), w)}};
}

IntMatrix recall(const IntMatrix& u, Form form) { return recall_by_layers(u, form).back().matrix; }

IntMatrix by_definition(const IntMatrix& u) {
  IntMatrix result(u.size);
  for (int64_t i = 2; i < u.size.rows; i += 3) {
    for (int64_t j = 0; j + 3 <= i; j += 3) {
      if (!std::equal(u.row(j), u.row(j) + u.size.columns, u.row(i))) continue;
      for (int64_t k = 0; k < u.size.columns; ++k) result.at(i, k) = 2 * u.at(j + 1, k) - 1;
      break;
    }
  }
  return result;
}

// Compares only the rows of queries: the output in other rows is unspecified.
bool same_answers(const IntMatrix& a, const IntMatrix& b) {
  for (int64_t i = 2; i < a.size.rows; i += 3)
    if (!std::equal(a.row(i), a.row(i) + a.size.columns, b.row(i))) return false;
  return true;
}

IntMatrix bits(int64_t number, Size size) {
  IntMatrix u(size);
  for (size_t k = 0; k < u.cells.size(); ++k) u.cells[k] = bit_of(number, static_cast<int64_t>(k));
  return u;
}

void try_repaired(Trial& trial) {
  const auto check = [&](const IntMatrix& u) {
    trial.count();
    trial.require(same_answers(recall(u, Form::repaired), by_definition(u)), "a query is answered wrongly");
  };
  for (const auto& [length, width] : {std::pair<int64_t, int64_t>{1, 4}, {2, 1}, {2, 2}, {3, 1}, {4, 1}}) {
    trial.size(std::to_string(length) + "x" + std::to_string(width));
    for (int64_t number = 0; number < int64_t{1} << (3 * length * width); ++number) check(bits(number, {3 * length, width}));
  }
  Random random(31);
  for (const auto& [length, width] : {std::pair<int64_t, int64_t>{3, 2}, {8, 3}, {12, 5}, {16, 10}}) {
    trial.size(std::to_string(length) + "x" + std::to_string(width));
    for (int k = 0; k < 500; ++k) {
      IntMatrix u = random_matrix(random, {3 * length, width}, 0, 1);
      // Half of the queries are copies of a key: random queries of many bits match no key.
      for (int64_t i = 2; i < u.size.rows; i += 3)
        if (const int64_t j = 3 * random.between(0, length - 1); random.below(2) == 0) std::copy(u.row(j), u.row(j) + width, u.row(i));
      check(u);
    }
  }
  trial.layers(3, "O(1)");
}

// Finds the first 2 x 2 input on which a form fails.
void try_form(Trial& trial, Form form, const std::string& printed, const std::string& why, const std::string& repair) {
  const Size size{6, 2};
  int64_t wrong = 0, all = int64_t{1} << (size.rows * size.columns);
  for (int64_t number = 0; number < all; ++number)
    wrong += !same_answers(recall(bits(number, size), form), by_definition(bits(number, size)));
  trial.count(all);
  trial.correct(
      {printed, "N = 2, d = 2: " + std::to_string(wrong) + " of " + std::to_string(all) + " inputs come out wrong; " + why, repair},
      wrong > 0);
}

void verify(Trial& trial) {
  try_repaired(trial);
  const int64_t length = 2, d = 2;
  const IntMatrix scores({3 * length, 3 * length}), w1({d, d});
  trial.correct({"Z W₁ W₂ with Z of 3N x 3N and W₁, W₂ of d x d",
                 "N = 2, d = 2: " + std::to_string(scores.size.columns) + " columns meet " + std::to_string(w1.size.rows) + " rows",
                 "W₁, W₂ and W₃ are 3N x 3N: these layers run over positions, not over features, and belong to one N"},
                scores.size.columns != w1.size.rows);
  try_form(trial, Form::no_positions, "K, Q and V are 0 in the rows of the others, by projections uW + B",
           "such a projection of W = 2I is 0 for no row that may be both 0 and 1, and a value equal to the query is taken for its key",
           "the scores' bias of 3N x 3N closes pairs that are no query and key");
  try_form(trial, Form::no_causality, "scores of keys behind the query count, too", "a later key answers",
           "the bias closes them: the task asks for j < i");
  try_form(trial, Form::w2_as_printed, "W₂[ℓ, k] = -1 where k = 0", "column 0 is subtracted from itself alone",
           "W₂[ℓ, k] = -1 where ℓ = 0 and k ≠ 0");
}

Drawing drawing() {
  IntMatrix u({9, 2});
  u.cells = {0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1};
  return {
      "Key, value and query in three rows each, two bits a row: the second query asks for key 01, the third for 11, the first for none.",
      recall_by_layers(u, Form::repaired)};
}

}  // namespace relu_attention_statement

extern const Statement statement_relu_attention{"relu_attention",
                                                "Section 'd_log', first proposition",
                                                "attention with ReLU and two MLPs solve recall in O(1) layers",
                                                27'152,
                                                relu_attention_statement::verify,
                                                nullptr,
                                                relu_attention_statement::drawing};

}  // namespace based::theory
