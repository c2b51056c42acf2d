// The counting bound on layers: L layers of degree 2 compute a polynomial in a query's d bits, and Alice can send its coefficients.
#pragma once
#include <cstdint>

#include "theory/degree.h"
#include "theory/matrix.h"

namespace based::theory {

// Σ C(d, i) for i ≤ degree: the number of multilinear monomials in d variables. The paper's d^degree is smaller if d or the degree is 1.
int64_t multilinear_monomials(int64_t variables, int64_t degree);

// An upper bound on the sum of absolute coefficients of each cell after L layers on N × d, whose parameters are at most `largest` ≥ 1 in
// absolute value: (largest² (N + 1) (d + 1))^(2^L − 1). Throws Error if it exceeds 64 bits.
int64_t coefficient_bound(Size size, int64_t layers, int64_t largest);
int64_t absolute_coefficients(const Polynomial& polynomial);  // their sum

// The smallest L for which the coefficients of a query's polynomial have enough bits for the index problem: (d + 1)^(2^L) · B ≥ (1 −
// H(1/3)) N, with B = 2^L (2α + 4) log N bits per coefficient and parameters of at most N^α. N = 2^log_length and d = 2^log_width ≤ N.
int64_t least_layers_by_counting(double log_length, double log_width, double alpha);

}  // namespace based::theory
