// Lower bounds on degrees, and on layers of BaseConv by them: a layer at most doubles the degree of a polynomial in the inputs.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "based/theory/integers.h"
#include "based/theory/matrix.h"
#include "based/theory/polynomial.h"

namespace based::theory {

// What a layer computes with where inputs are symbols: theory::run gives each cell as a polynomial in them.
struct Polynomials {
  using Value = Polynomial;
  static Value constant(int64_t value) { return value; }
  static Value sum(const Value& a, const Value& b) { return a + b; }
  static Value product(const Value& a, const Value& b) { return a * b; }
};

// One variable a cell, row by row.
Matrix<Polynomial> symbols(Size size);

// A change of some of the inputs of a function: variable first + i goes from before[i] to after[i].
struct Change {
  int64_t first;
  std::vector<int64_t> before, after;
};

// The sum over all subsets of `changes` of (−1)^(changes not made) · f(input with these changes made). Changes are of distinct variables. A
// monomial in fewer variables than there are changes misses one of them and so cancels: where the sum is not zero, every polynomial that
// equals f on these 2^changes inputs has a degree of at least changes.size(), whatever it is elsewhere. At most 24 changes.
int64_t mixed_difference(std::vector<int64_t> input, const std::vector<Change>& changes, const BooleanFunction& f);

// The least L with 2^L ≥ degree, or Δ^L ≥ degree where a layer multiplies the degree by up to Δ ≥ 2. degree ≥ 1.
int64_t least_layers(int64_t degree, int64_t growth = 2);

}  // namespace based::theory
