#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class SoftmaxDim final : public FeatureMap {
 public:
  SoftmaxDim(const FloorOptions& options, int64_t width) : FeatureMap(2 * width), options_(checked("softmax_dim", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override {
    const Tensor u = options_.scaled(x);
    return torch::cat({row_softmax(u), row_softmax(-u)}, -1).clamp_min(options_.floor);
  }

 private:
  FloorOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(softmax_dim, SoftmaxDim, FloorOptions, "softmax of x and of -x over a head, not below floor")

}  // namespace based
