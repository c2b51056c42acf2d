#include <numbers>

#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class SquaredMap final : public FeatureMap {
 public:
  SquaredMap(const NoFeatureMapOptions&, int64_t width) : FeatureMap(width) {}
  Tensor forward(const Tensor& x, const Pass&) const override { return x * x * std::numbers::sqrt2 / 2; }
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(squared_map, SquaredMap, NoFeatureMapOptions, "x²/√2")

}  // namespace based
