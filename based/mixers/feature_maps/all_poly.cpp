// A learned polynomial of second degree: ((W₁ x)² + W₂ x²)/√2. Features may be negative through W₂.
#include <cmath>
#include <numbers>

#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

struct AllPolyOptions {
  int64_t features = 0;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("features", features, "number of features; 0: the width of x");
  }
};

class AllPoly final : public FeatureMap {
 public:
  AllPoly(const AllPolyOptions& options, int64_t width) : FeatureMap(options.features == 0 ? width : options.features) {
    check_option("all_poly", "features", options.features, 0, int64_t{1} << 20);
    const double std = 1 / std::sqrt(static_cast<double>(width));
    proj_1_ = register_module("proj_1", full_precision(std::make_shared<Projection>(width, features(), false, std)));
    proj_2_ = register_module("proj_2", full_precision(std::make_shared<Projection>(width, features(), false, std)));
  }

  Tensor forward(const Tensor& x, const Pass&) const override {
    const Tensor linear = product(x, proj_1_->weight());
    return (linear * linear + product(x * x, proj_2_->weight())) * (std::numbers::sqrt2 / 2);
  }

 private:
  std::shared_ptr<Projection> proj_1_, proj_2_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(all_poly, AllPoly, AllPolyOptions, "a learned polynomial of second degree; weights of either sign")

}  // namespace based
