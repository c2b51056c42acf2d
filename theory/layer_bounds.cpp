#include "theory/layer_bounds.h"
#include "based/data/index_problem.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "theory/index_protocol.h"

namespace based::theory {

int64_t multilinear_monomials(int64_t variables, int64_t degree) {
  int64_t sum = 0, choices = 1;  // C(variables, i)
  for (int64_t i = 0; i <= std::min(variables, degree); ++i) {
    sum = Integers::sum(sum, choices);
    choices = Integers::product(choices, variables - i) / (i + 1);
  }
  return sum;
}

int64_t coefficient_bound(Size size, int64_t layers, int64_t largest) {
  const int64_t one_layer = Integers::product(Integers::product(largest, largest), Integers::product(size.rows + 1, size.columns + 1));
  int64_t bound = 1;
  for (int64_t factor = (int64_t{1} << layers) - 1; factor > 0; --factor) bound = Integers::product(bound, one_layer);
  return bound;
}

int64_t absolute_coefficients(const Polynomial& polynomial) {
  int64_t sum = 0;
  for (const auto& [monomial, coefficient] : polynomial.terms()) sum = Integers::sum(sum, std::abs(coefficient));
  return sum;
}

int64_t least_layers_by_counting(double log_length, double log_width, double alpha) {
  const double asked = log_length + std::log2(index_bound(1, 1.0 / 3));
  const double log_choices = log_width > 30 ? log_width : std::log2(1 + std::exp2(log_width));  // log(d + 1)
  for (int64_t layers = 0;; ++layers) {
    const double degree = std::exp2(static_cast<double>(layers));
    const double log_bits = static_cast<double>(layers) + std::log2((2 * alpha + 4) * log_length);
    if (degree * log_choices + log_bits >= asked) return layers;
  }
}

}  // namespace based::theory
