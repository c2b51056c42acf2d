#include "based/mixers/kit/feature_map.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

class ExpDim final : public FeatureMap {
 public:
  ExpDim(const FloorOptions& options, int64_t width) : FeatureMap(2 * width), options_(checked("exp_dim", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override {
    const Tensor u = options_.scaled(x);
    return ops::rowwise::exp(torch::cat({u, -u}, -1).clamp_min(options_.floor));
  }

 private:
  FloorOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(exp_dim, ExpDim, FloorOptions, "e^max(x, 0) and e^max(-x, 0)")

}  // namespace based
