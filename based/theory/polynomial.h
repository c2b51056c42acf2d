// Polynomials in many variables with exact coefficients, kept as the terms that are not zero.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace based::theory {

// Variables in ascending order, each as often as its exponent: x0²x3 is {0, 0, 3}.
using Monomial = std::vector<int>;

// Coefficients are 64-bit integers; a result beyond them throws Error.
class Polynomial {
 public:
  Polynomial(int64_t constant = 0);
  static Polynomial variable(int index);

  const std::map<Monomial, int64_t>& terms() const { return terms_; }
  int64_t degree() const;  // −1 of the zero polynomial
  int64_t coefficient(const Monomial& monomial) const;
  // The value where variable i is values[i]; values beyond the variables in use are ignored.
  int64_t evaluate(std::span<const int64_t> values) const;

  Polynomial& operator+=(const Polynomial& other);
  friend Polynomial operator+(Polynomial a, const Polynomial& b) { return a += b; }
  friend Polynomial operator-(const Polynomial& a, const Polynomial& b) { return a + Polynomial(-1) * b; }
  friend Polynomial operator*(const Polynomial& a, const Polynomial& b);
  friend bool operator==(const Polynomial&, const Polynomial&) = default;

  // With each variable i replaced by of(i).
  Polynomial substitute(const std::function<Polynomial(int)>& of) const;
  // Equal where every variable is 0 or 1: xᵏ becomes x.
  Polynomial multilinear() const;
  // Equal where, beyond that, at most one variable of a block is 1: terms with two of them are dropped. block_of[i] is variable i's block.
  Polynomial block_exclusive(std::span<const int> block_of) const;
  bool is_block_exclusive(std::span<const int> block_of) const;
  bool is_multilinear() const;

  std::string text(const std::function<std::string(int)>& name) const;

 private:
  void add(const Monomial& monomial, int64_t coefficient);
  std::map<Monomial, int64_t> terms_;
};

// The block of each variable where consecutive variables make blocks of these widths.
std::vector<int> blocks_of(std::span<const int> widths);

using BooleanFunction = std::function<int64_t(std::span<const int64_t>)>;

// The unique polynomial with at most one variable of each block a term that equals f on all inputs with at most one 1 a block. Blocks of
// width 1 give the unique multilinear polynomial of a function of bits. f is called ∏(width + 1) times, which must be at most 2^22.
Polynomial interpolate(std::span<const int> widths, const BooleanFunction& f);
// The same inputs, each once.
void for_each_input(std::span<const int> widths, const std::function<void(std::span<const int64_t>)>& visit);

}  // namespace based::theory
