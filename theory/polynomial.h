// Polynomials in many variables with exact coefficients, stored as their non-zero terms.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace based::theory {

// Variables in ascending order, each repeated according to its exponent: x0²x3 is {0, 0, 3}.
using Monomial = std::vector<int>;

// Coefficients are 64-bit integers. Throws Error on overflow.
class Polynomial {
 public:
  Polynomial(int64_t constant = 0);
  static Polynomial variable(int index);

  const std::map<Monomial, int64_t>& terms() const { return terms_; }
  int64_t degree() const;  // −1 for the zero polynomial
  int64_t coefficient(const Monomial& monomial) const;
  // The value for variable i = values[i]. Values of unused variables are ignored.
  int64_t evaluate(std::span<const int64_t> values) const;

  Polynomial& operator+=(const Polynomial& other);
  friend Polynomial operator+(Polynomial a, const Polynomial& b) { return a += b; }
  friend Polynomial operator-(const Polynomial& a, const Polynomial& b) { return a + Polynomial(-1) * b; }
  friend Polynomial operator*(const Polynomial& a, const Polynomial& b);
  friend bool operator==(const Polynomial&, const Polynomial&) = default;

  // Replaces each variable i by replacement(i).
  Polynomial substitute(const std::function<Polynomial(int)>& replacement) const;
  // The multilinear polynomial that is equal for variables in {0, 1}: xᵏ becomes x.
  Polynomial multilinear() const;
  // The polynomial that is equal for variables in {0, 1} of which at most one per block is 1: as multilinear(), and terms with two
  // variables of a block are dropped. block_of[i] is the block of variable i.
  Polynomial block_exclusive(std::span<const int> block_of) const;
  bool is_block_exclusive(std::span<const int> block_of) const;
  bool is_multilinear() const;

  std::string text(const std::function<std::string(int)>& name) const;

 private:
  void add(const Monomial& monomial, int64_t coefficient);
  std::map<Monomial, int64_t> terms_;
};

// The block of each variable if consecutive variables form blocks of these widths.
std::vector<int> blocks_of(std::span<const int> widths);

using BooleanFunction = std::function<int64_t(std::span<const int64_t>)>;

// The unique polynomial that equals f on all inputs with at most one 1 per block, and whose terms have at most one variable of each block.
// Blocks of width 1 give the unique multilinear polynomial of a function of bits. f is called ∏(width + 1) times, which must be at most
// 2^22.
Polynomial interpolate(std::span<const int> widths, const BooleanFunction& f);
// Calls `visit` once for every input with at most one 1 per block.
void for_each_input(std::span<const int> widths, const std::function<void(std::span<const int64_t>)>& visit);

}  // namespace based::theory
