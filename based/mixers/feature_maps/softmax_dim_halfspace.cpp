#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class SoftmaxDimHalfspace final : public FeatureMap {
 public:
  SoftmaxDimHalfspace(const FloorOptions& options, int64_t width)
      : FeatureMap(width), options_(checked("softmax_dim_halfspace", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override { return row_softmax(options_.scaled(x)).clamp_min(options_.floor); }

 private:
  FloorOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(softmax_dim_halfspace, SoftmaxDimHalfspace, FloorOptions, "softmax of x over a head, not below floor")

}  // namespace based
