#include "theory/degree.h"
#include "theory/statement.h"

namespace based::theory {
namespace layers_of_any_degree_statement {

// Runs layers of degree Δ on rows of symbols. Layer ℓ multiplies row i by rows i − r, …, i − (Δ−1)r with r = Δ^ℓ, so that the last row
// becomes the product of all Δ^L rows.
Polynomial product_of_rows(int64_t growth, int64_t layers) {
  int64_t rows = 1;
  for (int64_t k = 0; k < layers; ++k) rows *= growth;
  std::vector<Polynomial> u;
  for (int64_t i = 0; i < rows; ++i) u.push_back(Polynomial::variable(static_cast<int>(i)));
  for (int64_t reach = 1; reach < rows; reach *= growth) {
    std::vector<Polynomial> y(u.size(), Polynomial(1));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t k = 0; k < growth && i - k * reach >= 0; ++k)
        y[static_cast<size_t>(i)] = y[static_cast<size_t>(i)] * u[static_cast<size_t>(i - k * reach)];
    u = y;
  }
  return u.back();
}

void verify(Trial& trial) {
  trial.size("Δ ≤ 8, Δ^L ≤ 81");
  for (int64_t growth = 2; growth <= 8; ++growth) {
    int64_t degree = growth;
    for (int64_t layers = 1; degree <= 81; ++layers, degree *= growth) {
      trial.count();
      const Polynomial reached = product_of_rows(growth, layers);
      trial.require(reached.degree() == degree && reached.is_multilinear(),
                    "Δ = " + std::to_string(growth) + ": degree " + std::to_string(reached.degree()));
      trial.require(least_layers(degree, growth) == layers && least_layers(degree + 1, growth) == layers + 1,
                    "Δ = " + std::to_string(growth) + ": layers");
    }
  }
  for (const int64_t bits : {4, 16, 64}) {
    std::string text = "d = " + std::to_string(bits) + ", degree 2d + 1 = " + std::to_string(2 * bits + 1) + ": at least";
    for (const int64_t growth : {2, 3, 4, 8, 16})
      text +=
          (growth == 2 ? " " : ", ") + std::to_string(least_layers(2 * bits + 1, growth)) + " layers of degree " + std::to_string(growth);
    trial.note(text);
  }
}

}  // namespace layers_of_any_degree_statement

extern const Statement statement_layers_of_any_degree{"layers_of_any_degree", "Remark behind Theorem 'poly-layer'",
                                                      "with layers of degree Δ the bound on layers is divided by log Δ", 21,
                                                      layers_of_any_degree_statement::verify};

}  // namespace based::theory
