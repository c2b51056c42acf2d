#include "based/theory/polynomial.h"

#include <algorithm>

#include "based/theory/integers.h"

namespace based::theory {

Polynomial Polynomial::constant(int64_t value) {
  Polynomial result;
  result.add({}, value);
  return result;
}

Polynomial Polynomial::variable(int32_t number) {
  Polynomial result;
  result.add({number}, 1);
  return result;
}

void Polynomial::add(const Monomial& monomial, int64_t coefficient) {
  if (coefficient == 0) return;
  const auto [at, fresh] = terms_.try_emplace(monomial, coefficient);
  if (fresh) return;
  at->second = Integers::sum(at->second, coefficient);
  if (at->second == 0) terms_.erase(at);
}

Polynomial operator+(const Polynomial& a, const Polynomial& b) {
  Polynomial result = a;
  for (const auto& [monomial, coefficient] : b.terms_) result.add(monomial, coefficient);
  return result;
}

Polynomial operator*(const Polynomial& a, const Polynomial& b) {
  Polynomial result;
  for (const auto& [left, by] : a.terms_) {
    for (const auto& [right, of] : b.terms_) {
      Polynomial::Monomial both(left.size() + right.size());
      std::merge(left.begin(), left.end(), right.begin(), right.end(), both.begin());
      result.add(both, Integers::product(by, of));
    }
  }
  return result;
}

int64_t Polynomial::degree() const {
  int64_t degree = -1;
  for (const auto& [monomial, coefficient] : terms_) degree = std::max(degree, static_cast<int64_t>(monomial.size()));
  return degree;
}

int64_t Polynomial::at(const std::vector<int64_t>& values) const {
  int64_t sum = 0;
  for (const auto& [monomial, coefficient] : terms_) {
    int64_t term = coefficient;
    for (const int32_t variable : monomial) term = Integers::product(term, values[static_cast<size_t>(variable)]);
    sum = Integers::sum(sum, term);
  }
  return sum;
}

Polynomial Polynomial::multilinear() const {
  Polynomial result;
  for (const auto& [monomial, coefficient] : terms_) {
    Monomial once = monomial;
    once.erase(std::unique(once.begin(), once.end()), once.end());
    result.add(once, coefficient);
  }
  return result;
}

std::string Polynomial::text() const {
  std::string text;
  for (const auto& [monomial, coefficient] : terms_) {
    std::string term = monomial.empty() || coefficient != 1 ? std::to_string(coefficient) : "";
    for (const int32_t variable : monomial) term += (term.empty() ? "x" : " x") + std::to_string(variable);
    text += (text.empty() ? "" : " + ") + term;
  }
  return text.empty() ? "0" : text;
}

}  // namespace based::theory
