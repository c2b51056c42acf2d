// Performer's positive random features: e^(R z − |z|²/2)/√m, z = x/d^¼, with m fixed random rows R. Exponents are at most |row|²/2, some
// 64 at d = 128 and 256 at d = 512, past fp32: a query's features are scaled, which no weights' ratio hears of, a key's greatest cut off.
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
  double eps = 0;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("features", features, "random rows");
    field("unbiased", unbiased,
          "rows as long as Gaussian ones, so that the mean over draws of a weight is e^(q·k/√d); false: all of length √(d/features), as in "
          "the recall experiments' code");
    field("eps", eps, "added to each exponential, so that long keys do not vanish; 1e-4 in the authors' code; 0: no bias by it");
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

  Tensor forward(const Tensor& x, const Pass&) const override { return features_of(exponents_of(x).clamp_max(kGreatestOfKeys)); }
  Tensor of_queries(const Tensor& x, const Pass&) const override {
    const Tensor exponents = exponents_of(x), greatest = exponents.detach().amax(-1, /*keepdim=*/true);
    return features_of(exponents - (greatest - greatest.clamp(kLeast, kGreatest)));
  }

 private:
  // Of a query the greatest exponent is at least and at most this: with a key's, and 1,000 tokens' sums of them, e^83 of fp32's e^88.
  static constexpr double kLeast = -40, kGreatest = 20, kGreatestOfKeys = 56;

  Tensor exponents_of(const Tensor& x) const {
    const Tensor z = x * std::pow(static_cast<double>(width_), -0.25);
    return product(z, random_features_) - ops::rowwise::sum(z * z) / 2;
  }
  Tensor features_of(const Tensor& exponents) const {
    return (ops::rowwise::exp(exponents) + eps_) / std::sqrt(static_cast<double>(features()));
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

BASED_DEFINE_FEATURE_MAP(performer, Performer, PerformerOptions, "fixed random features, an estimate of e^(q·k/√d)")

}  // namespace based
