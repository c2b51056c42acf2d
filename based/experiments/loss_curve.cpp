#include "based/experiments/loss_curve.h"

#include <algorithm>
#include <cmath>

namespace based {

LossCurve grouped(const LossCurve& curve) {
  constexpr size_t kMostPoints = 60;
  const size_t count = curve.size(), group = (count + kMostPoints - 1) / kMostPoints;
  LossCurve means;
  for (size_t first = 0; first < count; first += group) {
    const size_t last = std::min(first + group, count);
    double step = 0, loss = 0;
    for (size_t i = first; i < last; ++i) step += static_cast<double>(curve[i].first), loss += curve[i].second;
    const auto size = static_cast<double>(last - first);
    means.emplace_back(std::llround(step / size), loss / size);
  }
  return means;
}

}  // namespace based
