// Performer's positive random features: e^(R z − |z|²/2)/√m, z = x/d^¼, with m fixed random rows R. The exponents reach |row|²/2, about 64
// at d = 128 and 256 at d = 512, which exceeds fp32. A query's features are therefore scaled, which leaves the ratios of its weights
// unchanged, and the exponents of keys are clamped.
#include <cmath>

#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/random_features.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {
namespace {

struct PerformerOptions {
  int64_t features = 256;
  bool unbiased = true;
  double eps = 0;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("features", features, "number of random rows");
    field(
        "unbiased", unbiased,
        "rows with the lengths of Gaussian vectors, so that a weight's mean over draws is e^(q·k/√d); false: all of length √(d/features), "
        "as in the recall experiments' code");
    field("eps", eps, "added to each exponential, so that long keys do not vanish; 1e-4 in the authors' code; 0: no bias");
  }
};

class Performer final : public FeatureMap {
 public:
  Performer(const PerformerOptions& options, int64_t width) : FeatureMap(options.features), width_(width) {
    check_option("performer", "features", options.features, 1, int64_t{1} << 20);
    check_number("performer", "eps", options.eps, 0);
    eps_ = options.eps;
    const bool empty = SkipInitialisation::active() || ShapesOnly::active();
    // A parameter without a gradient: it is saved with the others and never trained.
    random_features_ = register_parameter(
        "random_features", empty ? torch::empty({features(), width}, parameter_device()) : draw(options.unbiased), /*requires_grad=*/false);
  }

  Tensor forward(const Tensor& x, const Pass&) const override { return exponential(exponents(x).clamp_max(kLargestOfKeys)); }
  Tensor query_features(const Tensor& x, const Pass&) const override {
    const Tensor unscaled = exponents(x), largest = unscaled.detach().amax(-1, /*keepdim=*/true);
    return exponential(unscaled - (largest - largest.clamp(kSmallest, kLargest)));
  }

 private:
  // A query's largest exponent is shifted into [kSmallest, kLargest], and a key's exponents are at most kLargestOfKeys. Summed over 1,000
  // tokens (e^7), a weight is at most e^83; fp32 reaches e^88.
  static constexpr double kSmallest = -40, kLargest = 20, kLargestOfKeys = 56;

  Tensor exponents(const Tensor& x) const {
    const Tensor z = x * std::pow(static_cast<double>(width_), -0.25);
    return product(z, random_features_) - ops::rowwise::sum(z * z) / 2;
  }
  Tensor exponential(const Tensor& exponent) const {
    return (ops::rowwise::exp(exponent) + eps_) / std::sqrt(static_cast<double>(features()));
  }
  Tensor draw(bool unbiased) const {
    if (unbiased) return orthogonal_gaussian_rows(features(), width_);
    return orthogonal_rows(features(), width_, /*uniform=*/false) *
           std::sqrt(static_cast<double>(width_) / static_cast<double>(features()));
  }

  int64_t width_;
  double eps_ = 0;
  Tensor random_features_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(performer, Performer, PerformerOptions, "fixed random features that estimate e^(q·k/√d)")

}  // namespace based
