#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

class Relu final : public FeatureMap {
 public:
  Relu(const FloorOptions& options, int64_t width) : FeatureMap(width), options_(checked("relu", options)) {}
  Tensor forward(const Tensor& x, const Pass&) const override { return options_.scaled(x).clamp_min(options_.floor); }

 private:
  FloorOptions options_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(relu, Relu, FloorOptions, "max(x, 0), not below floor")

}  // namespace based
