#include "theory/layer_bounds.h"

#include <gtest/gtest.h>

#include <cmath>

#include "based/core/error.h"

namespace based::theory {
namespace layer_bounds_test {

TEST(LayerBounds, CountMultilinearMonomials) {
  EXPECT_EQ(multilinear_monomials(1, 1), 2);  // 1, x
  EXPECT_EQ(multilinear_monomials(3, 2), 7);
  EXPECT_EQ(multilinear_monomials(10, 100), 1024);
  EXPECT_EQ(multilinear_monomials(60, 0), 1);
  EXPECT_THROW(multilinear_monomials(70, 70), Error);
}

TEST(LayerBounds, BoundCoefficientsByLayers) {
  EXPECT_EQ(coefficient_bound({2, 1}, 0, 8), 1);
  EXPECT_EQ(coefficient_bound({2, 1}, 1, 8), 64 * 3 * 2);
  EXPECT_EQ(coefficient_bound({2, 1}, 2, 8), int64_t{384} * 384 * 384);
  EXPECT_THROW(coefficient_bound({100, 100}, 4, 1000), Error);
  EXPECT_EQ(absolute_coefficients(Polynomial(3) * Polynomial::variable(0) - Polynomial(4)), 7);
}

TEST(LayerBounds, AskForMoreLayersOfLongerAndNarrowerInputs) {
  EXPECT_EQ(least_layers_by_counting(4, 4, 1), 0);  // one coefficient is enough
  for (int k = 4; k < 30; ++k) {
    EXPECT_LE(least_layers_by_counting(std::exp2(k), k, 1), least_layers_by_counting(std::exp2(k + 1), k, 1)) << k;
    EXPECT_GE(least_layers_by_counting(std::exp2(k), k, 1), least_layers_by_counting(std::exp2(k), 2 * k, 1)) << k;
    EXPECT_LE(least_layers_by_counting(std::exp2(k), k, 1), k) << k;
  }
}

}  // namespace layer_bounds_test
}  // namespace based::theory
