#include <algorithm>

#include "based/core/config.h"
#include "theory/statement.h"

namespace based::theory {

#define BASED_STATEMENT(name) extern const Statement statement_##name;
#include "theory/statements.def"
#undef BASED_STATEMENT

std::string Result::verdict() const {
  if (!holds()) return "FAILS";
  return corrections.empty() ? "holds" : "holds as repaired";
}

void Trial::size(const std::string& text) { result_.sizes += (result_.sizes.empty() ? "" : ", ") + text; }

void Trial::count(int64_t inputs) {
  result_.inputs += inputs;
  if (counted_) counted_(result_.inputs);
}

void Trial::layers(int64_t built, const std::string& claimed) {
  result_.least_layers = std::min(built, result_.least_layers.value_or(built));
  result_.most_layers = std::max(built, result_.most_layers.value_or(built));
  result_.claimed_layers = claimed;
}

void Trial::layers(int64_t built, int64_t claimed) {
  layers(built, std::to_string(claimed));
  require(built <= claimed, std::to_string(built) + " layers were built, " + std::to_string(claimed) + " are claimed");
}

bool Trial::require(bool holds, const std::string& failure) {
  constexpr size_t kMany = 5;
  if (!holds && result_.failures.size() < kMany) result_.failures.push_back(failure);
  return holds;
}

void Trial::correct(const Correction& correction, bool shown) {
  if (require(shown, "no counterexample to what is printed: " + correction.printed)) result_.corrections.push_back(correction);
}

bool Trial::compare(const Program& program, const IntMatrix& input, const IntMatrix& expected, const std::string& sized) {
  count();
  const IntMatrix found = corner(run(program, input), expected.size);
  for (int64_t i = 0; i < expected.size.rows; ++i) {
    if (!std::equal(found.row(i), found.row(i) + found.size.columns, expected.row(i)))
      return require(false, sized + ": row " + std::to_string(i) + " is " + row_text(found, i) + ", not " + row_text(expected, i));
  }
  return true;
}

const std::vector<const Statement*>& statements() {
  static const std::vector<const Statement*> all{
#define BASED_STATEMENT(name) &statement_##name,
#include "theory/statements.def"
#undef BASED_STATEMENT
  };
  return all;
}

const Statement& find_statement(const std::vector<const Statement*>& among, const std::string& name) {
  std::vector<std::string> names;
  for (const Statement* statement : among) {
    if (name == statement->name) return *statement;
    names.emplace_back(statement->name);
  }
  const std::string close = nearest(name, names);
  throw UsageError("theory: no statement is called '" + name + "'" +
                   (close.empty() ? "; `based theory list` names them" : "; did you mean '" + close + "'?"));
}

IntMatrix random_matrix(Random& random, Size size, int64_t low, int64_t high) {
  IntMatrix matrix(size);
  for (int64_t& cell : matrix.cells) cell = random.between(low, high);
  return matrix;
}

std::string row_text(const IntMatrix& matrix, int64_t row) {
  std::string text;
  for (int64_t j = 0; j < matrix.size.columns; ++j) text += (j == 0 ? "" : ", ") + std::to_string(matrix.at(row, j));
  return "(" + text + ")";
}

}  // namespace based::theory
