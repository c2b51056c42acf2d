#include "based/mixers/kit/feature_map.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

class PosElu final : public FeatureMap {
 public:
  PosElu(const ScaleOptions& options, int64_t width) : FeatureMap(width), options_(checked("pos_elu", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override { return ops::rowwise::elu_plus_one(options_.scaled(x)); }

 private:
  ScaleOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(pos_elu, PosElu, ScaleOptions, "elu(x) + 1: x + 1 above 0, e^x below")

}  // namespace based
