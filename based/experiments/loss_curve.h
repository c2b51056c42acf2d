// A loss over the steps of a training run, for figures.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace based {

using LossCurve = std::vector<std::pair<int64_t, double>>;  // step, loss; in the order of the steps

// The means over groups of consecutive points: at most 60 points, because more would show noise.
LossCurve grouped(const LossCurve& curve);

}  // namespace based
