#include "based/mixers/kit/feature_map.h"

#include "based/mixers/kit/registry.h"
#include "based/ops/linear/linear.h"
#include "based/ops/pointwise/rowwise.h"

namespace based {

// An explicit table, as in mixer.cpp: each entry calls into its map's file, so that the linker keeps that file.
#define BASED_FEATURE_MAP(name) const FeatureMapInfo& feature_map_info_##name();
#include "based/mixers/feature_maps/feature_maps.def"
#undef BASED_FEATURE_MAP

const std::vector<FeatureMapInfo>& feature_maps() {
  static const std::vector<FeatureMapInfo> all = {
#define BASED_FEATURE_MAP(name) feature_map_info_##name(),
#include "based/mixers/feature_maps/feature_maps.def"
#undef BASED_FEATURE_MAP
  };
  return all;
}

const FeatureMapInfo& find_feature_map(const std::string& name) { return find_named(feature_maps(), "feature map", name); }

const std::string& feature_map_names() {
  static const std::string text = [] {
    std::string all;
    for (const FeatureMapInfo& map : feature_maps()) all += (all.empty() ? "" : ", ") + std::string(map.name);
    return all;
  }();
  return text;
}

Tensor product(const Tensor& x, const Tensor& weight) {
  const int64_t tokens = x.size(0), heads = x.size(1);
  const Tensor cast = weight.to(x.scalar_type());
  // On the CPU, ops::linear is batch-invariant only up to kBatchInvariantRows rows, so a few tokens are multiplied one head at a time.
  if (!x.is_cpu() || tokens > ops::kBatchInvariantRows) return ops::linear(x.flatten(0, 1), cast).unflatten(0, {tokens, heads});
  std::vector<Tensor> head_products;
  for (int64_t head = 0; head < heads; ++head) head_products.push_back(ops::linear(x.select(1, head), cast));
  return torch::stack(head_products, 1);
}

Tensor row_softmax(const Tensor& x) {
  const Tensor powers = ops::rowwise::exp(x - x.detach().amax(-1, /*keepdim=*/true));
  return powers / ops::rowwise::sum(powers);
}

}  // namespace based
