#include "theory/degree.h"
#include "theory/recall.h"
#include "theory/statement.h"

namespace based::theory {
namespace mqar_degree_statement {

Polynomial interpolate_bits(int64_t variables, const BooleanFunction& f) {
  const std::vector<int> single(static_cast<size_t>(variables), 1);
  return interpolate(single, f);
}

// The polynomial ∏ₖ (qₖ kₖ + (1 − qₖ)(1 − kₖ)) · v in the variables q, k, v.
Polynomial printed(int width, int bit) {
  Polynomial product = Polynomial::variable(2 * width + bit);
  for (int k = 0; k < width; ++k) {
    const Polynomial query = Polynomial::variable(k), key = Polynomial::variable(width + k);
    product = product * (query * key + (Polynomial(1) - query) * (Polynomial(1) - key));
  }
  return product;
}

void try_one_pair(Trial& trial) {
  trial.size("one key, all inputs, d ≤ 5");
  for (int width = 1; width <= 5; ++width) {
    for (int bit = 0; bit < width; ++bit) {
      const Polynomial unique = interpolate_bits(3 * width, recall_bit(width, 1, bit, Matches::first));
      trial.count(int64_t{1} << 3 * width);
      trial.require(unique.degree() == 2 * width + 1 && unique == printed(width, bit),
                    "d = " + std::to_string(width) + ": degree " + std::to_string(unique.degree()));
    }
  }
}

void try_one_pair_by_difference(Trial& trial) {
  trial.size("mixed differences, d ≤ 9");
  for (int64_t width = 1; width <= 9; ++width) {
    std::vector<Change> changes;
    for (int64_t k = 0; k <= 2 * width; ++k) changes.push_back({k, {0}, {1}});
    const std::vector<int64_t> zeros(static_cast<size_t>(3 * width));
    trial.count(int64_t{1} << changes.size());
    trial.require(mixed_difference(zeros, changes, recall_bit(width, 1, 0, Matches::first)) != 0,
                  "d = " + std::to_string(width) + ": a lower degree is possible");
  }
}

int64_t degree_of(int64_t width, int64_t keys, Matches matches) {
  return interpolate_bits((2 * keys + 1) * width, recall_bit(width, keys, 0, matches)).degree();
}

void try_several_keys(Trial& trial) {
  trial.size("2 … 5 keys, d ≤ 2");
  for (const auto& [width, keys] : {std::pair<int64_t, int64_t>{1, 2}, {1, 3}, {1, 4}, {1, 5}, {2, 2}, {2, 3}}) {
    trial.count(int64_t{1} << (2 * keys + 1) * width);
    trial.require(degree_of(width, keys, Matches::sum) == 2 * width + 1, "a sum over " + std::to_string(keys) + " keys has another degree");
  }
  const int64_t one_bit = degree_of(1, 3, Matches::first), two_bits = degree_of(2, 3, Matches::first);
  trial.correct({"MQAR is a multilinear polynomial of degree 2d + 1",
                 "with three earlier keys and the first match as the answer the degree is " + std::to_string(one_bit) + " at d = 1 and " +
                     std::to_string(two_bits) + " at d = 2: 4d + 1",
                 "2d + 1 is the degree of one key's term, and of their sum where at most one key matches; the bound on layers needs no "
                 "more, since the first "
                 "query asked has one earlier key"},
                one_bit == 5 && two_bits == 9);
}

// The paper prints the value as u[i + 1], with i the query's row. The value is in the row after the key, u[j + 1].
void try_printed_row(Trial& trial) {
  const std::vector<int64_t> u{1, 1, 0, 0, 0, 1, 0, 0, 0};  // three (key, value, query) of one bit: query 1 (row 5) matches key 0
  const int64_t as_printed = printed(1, 0).evaluate(std::vector<int64_t>{u[5], u[0], u[5 + 1]});
  const int64_t repaired = printed(1, 0).evaluate(std::vector<int64_t>{u[5], u[0], u[0 + 1]});
  trial.count(2);
  trial.correct({"the value is u[i + 1], i the query's row (and 'v_i' is the output)",
                 "(1,1,0), (0,0,1), (0,0,0) of one bit: query 1 gets " + std::to_string(as_printed) + ", its key's value is 1",
                 "u[j + 1], j the key's row; v_j"},
                as_printed == 0 && repaired == 1);
}

void verify(Trial& trial) {
  try_one_pair(trial);
  try_one_pair_by_difference(trial);
  try_several_keys(trial);
  try_printed_row(trial);
  trial.note("d = 1: a query's bit is " + printed(1, 0).text([](int variable) { return std::string(1, "qkv"[variable]); }));
}

}  // namespace mqar_degree_statement

extern const Statement statement_mqar_degree{"mqar_degree", "Lemma 'unqiue-mqar'",
                                             "MQAR in d = log c bits is a multilinear polynomial of degree 2d + 1", 901'074,
                                             mqar_degree_statement::verify};

}  // namespace based::theory
