#include "theory/integers.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace linear_attention_features_statement {

// The features [1, M, M ⊠ M] of one row.
std::vector<int64_t> features(const IntMatrix& linear, const IntMatrix& squared, int64_t row) {
  std::vector<int64_t> all{1};
  for (int64_t j = 0; j < linear.size.columns; ++j) all.push_back(linear.at(row, j));
  for (int64_t j = 0; j < squared.size.columns; ++j)
    for (int64_t k = 0; k < squared.size.columns; ++k) all.push_back(Integers::product(squared.at(row, j), squared.at(row, k)));
  return all;
}

int64_t dot(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  int64_t sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum = Integers::sum(sum, Integers::product(a[k], b[k]));
  return sum;
}

int64_t taylor(const IntMatrix& q, const IntMatrix& k, int64_t i, int64_t n) {
  int64_t product = 0;
  for (int64_t j = 0; j < q.size.columns; ++j) product += q.at(i, j) * k.at(n, j);
  return 1 + product + product * product;
}

void verify(Trial& trial) {
  Random random(29);
  trial.size("N ≤ 8, d' ≤ 6");
  int64_t wrong = 0;
  std::string shown;
  for (int k = 0; k < kSizes * inputs_per_size(trial); ++k) {
    const Size size{random.between(1, 8), random.between(1, 6)};
    const IntMatrix q = random_matrix(random, size, -3, 3), key = random_matrix(random, size, -3, 3);
    const int64_t i = random.between(0, size.rows - 1), n = random.between(0, size.rows - 1);
    const int64_t wanted = taylor(q, key, i, n);
    trial.count();
    trial.require(dot(features(q, q, i), features(key, key, n)) == wanted, "Q̄K̄ᵀ is not 1 + QKᵀ + (QKᵀ)²");
    const int64_t printed = dot(features(q, q, i), features(q, key, n));
    wrong += printed != wanted;
    if (shown.empty() && printed != wanted)
      shown = "q = " + row_text(q, i) + ", k = " + row_text(key, n) + ": " + std::to_string(printed) + ", not " + std::to_string(wanted);
  }
  trial.correct(
      {"K̄ = [1, Q, K ⊠ K] in the definition of linear attention", "the weight of a pair then is, for " + shown, "K̄ = [1, K, K ⊠ K]"},
      wrong > 0);
  trial.note(
      "the definition has neither the ½ of the Taylor map of the paper's section on the architecture nor its causal mask and denominator");
}

}  // namespace linear_attention_features_statement

extern const Statement statement_linear_attention_features{"linear_attention_features", "Definition 'LinAtt'",
                                                           "Q̄K̄ᵀ = 1 + QKᵀ + (QKᵀ)² of the concatenated features", 4000,
                                                           linear_attention_features_statement::verify};

}  // namespace based::theory
