// Lower bounds on the degree of polynomials, and thereby on the number of BaseConv layers: a layer at most doubles the degree in the
// inputs.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "theory/integers.h"
#include "theory/matrix.h"
#include "theory/polynomial.h"

namespace based::theory {

// The arithmetic for symbolic inputs: theory::run returns each cell as a polynomial in the inputs.
struct Polynomials {
  using Value = Polynomial;
  static Value constant(int64_t value) { return value; }
  static Value sum(const Value& a, const Value& b) { return a + b; }
  static Value product(const Value& a, const Value& b) { return a * b; }
};

// A matrix with one variable per cell, numbered row by row.
Matrix<Polynomial> symbols(Size size);

// A change of some of the inputs of a function: variable first + i goes from before[i] to after[i].
struct Change {
  int64_t first;
  std::vector<int64_t> before, after;
};

// The sum over all subsets of `changes` of (−1)^(changes not made) · f(input with the subset's changes). The changes, at most 24, concern
// distinct variables. A monomial with fewer variables than there are changes is constant in one change and cancels. So if the sum is not
// zero, every polynomial that equals f on these 2^changes inputs has a degree of at least changes.size().
int64_t mixed_difference(std::vector<int64_t> input, const std::vector<Change>& changes, const BooleanFunction& f);

// The smallest L with growth^L ≥ degree, where a layer multiplies the degree by at most `growth` ≥ 2. degree ≥ 1.
int64_t least_layers(int64_t degree, int64_t growth = 2);

}  // namespace based::theory
