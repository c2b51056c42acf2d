#include "based/mixers/kit/feature_map.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

class ExpMaxNorm final : public FeatureMap {
 public:
  ExpMaxNorm(const FloorOptions& options, int64_t width) : FeatureMap(2 * width), options_(checked("exp_max_norm", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override {
    const Tensor scaled = options_.scaled(x), u = scaled - scaled.amax(-1, true);
    return ops::rowwise::exp(torch::cat({u, -u}, -1).clamp_min(options_.floor));
  }

 private:
  FloorOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(exp_max_norm, ExpMaxNorm, FloorOptions, "e^max(u, 0) and e^max(-u, 0) of u = x - the largest of its row")

}  // namespace based
