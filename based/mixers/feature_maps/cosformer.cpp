// cosFormer: ReLU(q)·ReLU(k) cos(π/2 (i − j)/length) for positions i and j, as an inner product of features that depend on the position.
#include <numbers>

#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

struct CosformerOptions {
  int64_t length = 2048;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("length", length, "positions over which a weight falls to 0; later positions count as the last, so that no weight is negative");
  }
};

class Cosformer final : public FeatureMap {
 public:
  Cosformer(const CosformerOptions& options, int64_t width) : FeatureMap(2 * width), length_(options.length) {
    check_option("cosformer", "length", length_, 1, int64_t{1} << 24);
  }

  // [relu(x) sin(a), relu(x) cos(a)] with a = π t/(2 length), t counted from 1.
  Tensor forward(const Tensor& x, const Pass& pass) const override {
    const Tensor factors = table(x).index_select(0, pass.positions().clamp_max(length_ - 1));
    return (x.clamp_min(0).unsqueeze(2) * factors.view({-1, 1, 2, 1})).flatten(2);
  }

 private:
  // sin and cos [length, 2], computed once for x's device and type: ATen's vectorised sine may have different bits at the end of a tensor
  // than inside it.
  Tensor table(const Tensor& x) const {
    if (!table_.defined() || table_.device() != x.device() || table_.scalar_type() != x.scalar_type()) {
      const torch::InferenceMode none(false);  // training may follow
      const Tensor angle = torch::arange(1, length_ + 1, torch::kFloat64) * (std::numbers::pi / 2 / static_cast<double>(length_));
      table_ = torch::stack({angle.sin(), angle.cos()}, 1).to(x.device(), x.scalar_type());
    }
    return table_;
  }

  int64_t length_;
  mutable Tensor table_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(cosformer, Cosformer, CosformerOptions, "ReLU, with weights times a cosine of the distance")

}  // namespace based
