#include "theory/degree.h"

#include "based/core/error.h"

namespace based::theory {

Matrix<Polynomial> symbols(Size size) {
  Matrix<Polynomial> u(size);
  for (size_t at = 0; at < u.cells.size(); ++at) u.cells[at] = Polynomial::variable(static_cast<int>(at));
  return u;
}

int64_t mixed_difference(std::vector<int64_t> input, const std::vector<Change>& changes, const BooleanFunction& f) {
  BASED_ASSERT(changes.size() <= 24);
  int64_t sum = 0;
  for (uint32_t made = 0; made < uint32_t{1} << changes.size(); ++made) {
    int64_t sign = 1;
    for (size_t c = 0; c < changes.size(); ++c) {
      const bool is_made = made >> c & 1;
      if (!is_made) sign = -sign;
      const auto& values = is_made ? changes[c].after : changes[c].before;
      for (size_t i = 0; i < values.size(); ++i) input[static_cast<size_t>(changes[c].first) + i] = values[i];
    }
    sum = Integers::sum(sum, sign * f(input));
  }
  return sum;
}

int64_t least_layers(int64_t degree, int64_t growth) {
  BASED_ASSERT(degree >= 1 && growth >= 2);
  int64_t layers = 0;
  for (int64_t reached = 1; reached < degree; ++layers) reached = reached > degree / growth ? degree : reached * growth;
  return layers;
}

}  // namespace based::theory
