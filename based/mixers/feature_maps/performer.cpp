// Performer's positive random features: e^(R z − |z|²/2)/√m, z = x/d^¼, with m fixed random rows R.
#include <cmath>

#include "based/mixers/feature_map.h"
#include "based/mixers/random_features.h"
#include "based/mixers/shapes_only.h"
#include "based/ops/rowwise.h"

namespace based {
namespace {

struct PerformerOptions {
  int64_t features = 256;
  bool unbiased = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("features", features, "random rows");
    field("unbiased", unbiased,
          "rows as long as Gaussian ones, so that the mean over draws of a weight is e^(q·k/√d); false: all of length √(d/features), as in "
          "the recall experiments' code");
  }
};

class Performer final : public FeatureMap {
 public:
  Performer(const PerformerOptions& options, int64_t width) : FeatureMap(options.features), width_(width) {
    check_option("performer", "features", options.features, 1, int64_t{1} << 20);
    const bool empty = SkipInitialisation::active() || ShapesOnly::active();
    // A parameter without a gradient: it is saved with the others and never trained.
    random_features_ = register_parameter(
        "random_features", empty ? torch::empty({features(), width}, parameter_device()) : draw(options.unbiased), /*requires_grad=*/false);
  }

  Tensor forward(const Tensor& x, const Pass&) const override {
    const Tensor z = x * std::pow(static_cast<double>(width_), -0.25);
    const Tensor half_square = ops::rowwise::sum(z * z) / 2;
    return ops::rowwise::exp(product(z, random_features_) - half_square) / std::sqrt(static_cast<double>(features()));
  }

 private:
  Tensor draw(bool unbiased) const {
    if (unbiased) return orthogonal_gaussian_rows(features(), width_);
    return orthogonal_rows(features(), width_, /*uniform=*/false) *
           std::sqrt(static_cast<double>(width_) / static_cast<double>(features()));
  }

  int64_t width_;
  Tensor random_features_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(performer, Performer, PerformerOptions, "fixed random features, an estimate of e^(q·k/√d)")

}  // namespace based
