// The paper's map: inner products of features are 1 + s + s²/2 with s = q·k/√d. The mixer taylor_attention computes the same in fused
// kernels.
#include <cmath>

#include "based/kernels/taylor/taylor.h"
#include "based/mixers/kit/feature_map.h"
#include "based/ops/taylor/taylor_attention.h"

namespace based {
namespace {

struct TaylorExpOptions {
  bool packed = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("packed", packed, "each product of two entries once, 1 + d + d(d+1)/2 features, instead of twice, 1 + d + d² features");
  }
};

class TaylorExp final : public FeatureMap {
 public:
  TaylorExp(const TaylorExpOptions& options, int64_t width)
      : FeatureMap(options.packed ? kernels::packed_features(width) : 1 + width + width * width),
        packed_(options.packed),
        scale_(std::pow(static_cast<double>(width), -0.25)) {
    check_option("taylor_exp", "feature_dim", width, 1, 256);
  }

  Tensor forward(const Tensor& x, const Pass&) const override {
    const Tensor scaled = x * scale_;
    if (packed_) return ops::taylor_features(scaled);
    const Tensor products = (scaled.unsqueeze(-1) * scaled.unsqueeze(-2)).flatten(-2) * M_SQRT1_2;
    return torch::cat({torch::ones_like(scaled.narrow(-1, 0, 1)), scaled, products}, -1);
  }

 private:
  bool packed_;
  double scale_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(taylor_exp, TaylorExp, TaylorExpOptions, "second-order Taylor series of e^(q·k/√d)")

}  // namespace based
