#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class Square final : public FeatureMap {
 public:
  Square(const NoFeatureMapOptions&, int64_t width) : FeatureMap(width) {}
  Tensor forward(const Tensor& x, const Pass&) const override { return x * x; }
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(square, Square, NoFeatureMapOptions, "x²")

}  // namespace based
