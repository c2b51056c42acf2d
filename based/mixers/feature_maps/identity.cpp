#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class Identity final : public FeatureMap {
 public:
  Identity(const NoFeatureMapOptions&, int64_t width) : FeatureMap(width) {}
  Tensor forward(const Tensor& x, const Pass&) const override { return x; }
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(identity, Identity, NoFeatureMapOptions, "x; weights of either sign, so that a denominator may be near 0")

}  // namespace based
