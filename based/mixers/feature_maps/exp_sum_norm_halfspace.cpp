#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class ExpSumNormHalfspace final : public FeatureMap {
 public:
  ExpSumNormHalfspace(const FloorAloneOptions& options, int64_t width)
      : FeatureMap(width), options_(checked("exp_sum_norm_halfspace", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override {
    return torch::where(x >= 0, row_softmax(x.abs()), 0).clamp_min(options_.floor);
  }

 private:
  FloorAloneOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(exp_sum_norm_halfspace, ExpSumNormHalfspace, FloorAloneOptions,
                         "softmax of |x| over a head, 0 where x is negative; not below floor")

}  // namespace based
