#include "based/mixers/kit/random_features.h"

#include <algorithm>
#include <vector>

#include "based/mixers/kit/shapes_only.h"

namespace based {

Tensor orthogonal_rows(int64_t rows, int64_t width, bool uniform) {
  std::vector<Tensor> blocks;
  for (int64_t first = 0; first < rows; first += width) {
    const auto [q, r] = torch::linalg_qr(torch::randn({width, width}));
    const Tensor signs = torch::where(r.diagonal() < 0, -1.0F, 1.0F);  // never 0, so that a row keeps its length
    const Tensor block = uniform ? q * signs : q;
    blocks.push_back(block.t().narrow(0, 0, std::min(width, rows - first)));
  }
  return torch::cat(blocks);
}

Tensor orthogonal_gaussian_rows(int64_t rows, int64_t width) {
  if (SkipInitialisation::active() || ShapesOnly::active()) return torch::empty({rows, width}, parameter_device());
  const Tensor directions = orthogonal_rows(rows, width, /*uniform=*/true);
  return directions * torch::randn({rows, width}).norm(2, {1}, /*keepdim=*/true);
}

}  // namespace based
