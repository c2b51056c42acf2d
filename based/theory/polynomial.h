// Polynomials with integer coefficients, written out: what a small program computes in its inputs, and what a function needs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace based::theory {

class Polynomial {
 public:
  using Monomial = std::vector<int32_t>;  // variables in order, each as often as its power

  Polynomial() = default;  // 0
  static Polynomial constant(int64_t value);
  static Polynomial variable(int32_t number);

  // Throw Error where a coefficient does not fit into 64 bits.
  friend Polynomial operator+(const Polynomial& a, const Polynomial& b);
  friend Polynomial operator*(const Polynomial& a, const Polynomial& b);
  bool operator==(const Polynomial&) const = default;

  void add(const Monomial& monomial, int64_t coefficient);
  const std::map<Monomial, int64_t>& terms() const { return terms_; }  // none of coefficient 0
  int64_t degree() const;                                              // -1 of 0
  int64_t at(const std::vector<int64_t>& values) const;
  Polynomial multilinear() const;  // the same on 0 and 1: every power is one
  std::string text() const;        // "1 + 2 x0 x3"

 private:
  std::map<Monomial, int64_t> terms_;
};

// Programs run on them (`run` in base_conv.h) give each output as a polynomial.
struct Polynomials {
  using Value = Polynomial;
  static Value constant(int64_t value) { return Polynomial::constant(value); }
  static Value sum(const Value& a, const Value& b) { return a + b; }
  static Value product(const Value& a, const Value& b) { return a * b; }
};

}  // namespace based::theory
