// Feature maps of linear attention. A feature map φ turns queries and keys into features; the attention weight of a pair is the inner
// product φ(q)·φ(k). Each map is one file, based/mixers/feature_maps/foo.cpp, and one line in feature_maps.def.
#pragma once
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/pass.h"
#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

// Queries, keys and all heads share one map. Learned tensors are registered as in any torch module. Random tensors that are drawn once are
// registered as parameters without a gradient, so that they are saved.
class FeatureMap : public torch::nn::Module {
 public:
  explicit FeatureMap(int64_t features) : features_(features) {}
  // x [tokens, heads, width] -> [tokens, heads, features()] in fp32 (fp64 for fp64 models), independent of the activations' type.
  // Differentiable. In a step, a row's result must not depend on other rows, bit for bit: + − · /, comparisons, ops/pointwise/rowwise.h,
  // and product and row_softmax below guarantee this. pass.positions() gives each token's position in its sequence.
  virtual Tensor forward(const Tensor& x, const Pass& pass) const = 0;
  // The features of queries. A map may scale each query's features by any factor: the factor cancels when a token's weights are divided by
  // their sum.
  virtual Tensor query_features(const Tensor& x, const Pass& pass) const { return forward(x, pass); }
  int64_t features() const { return features_; }

 private:
  int64_t features_;
};

struct FeatureMapInfo {
  const char* name;
  const char* summary;                                                        // one line
  std::shared_ptr<FeatureMap> (*make)(const Config& options, int64_t width);  // throws UsageError for wrong options
  std::vector<FieldHelp> (*help)();                                           // its options
};

const std::vector<FeatureMapInfo>& feature_maps();                // in the order of feature_maps.def
const FeatureMapInfo& find_feature_map(const std::string& name);  // throws UsageError that suggests the nearest name
const std::string& feature_map_names();                           // "relu, square, …", for the help of options

// Building blocks of maps. The result of a row depends on that row alone, bit for bit.
Tensor product(const Tensor& x, const Tensor& weight);  // x [tokens, heads, width] · weight[features, width]ᵀ, in x's type
Tensor row_softmax(const Tensor& x);                    // over the last dimension

// Options that several maps share.
struct NoFeatureMapOptions {
  template <class Visitor>
  void visit(Visitor&&) {}
};
struct ScaleOptions {
  double scale = 1;
  Tensor scaled(const Tensor& x) const { return scale == 1 ? x : x * scale; }
  template <class Visitor>
  void visit(Visitor&& field) {
    field("scale", scale, "factor that x is multiplied by first");
  }
};
struct FloorAloneOptions {
  double floor = 1e-12;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("floor", floor, "smallest value; values below are raised to it");
  }
};
struct FloorOptions : ScaleOptions, FloorAloneOptions {
  template <class Visitor>
  void visit(Visitor&& field) {
    ScaleOptions::visit(field);
    FloorAloneOptions::visit(field);
  }
};
// Returns the options unchanged. Throws UsageError, such as "relu: floor must be a number of at least 0, got -1", if one is out of range.
template <class Options>
Options checked(const char* map, const Options& options) {
  if constexpr (requires { options.scale; }) check_number(map, "scale", options.scale, -std::numeric_limits<double>::max());
  if constexpr (requires { options.floor; }) check_number(map, "floor", options.floor, 0);
  return options;
}

}  // namespace based

// The last line of a map's file. The class needs a constructor Class(const ConfigStruct&, int64_t width), where `width` is the size of x's
// last dimension.
#define BASED_DEFINE_FEATURE_MAP(name, Class, ConfigStruct, summary)                                                                      \
  const ::based::FeatureMapInfo& feature_map_info_##name() {                                                                              \
    static const ::based::FeatureMapInfo info{#name, summary,                                                                             \
                                              [](const ::based::Config& options, int64_t width) -> std::shared_ptr<::based::FeatureMap> { \
                                                return std::make_shared<Class>(::based::read_config<ConfigStruct>(options), width);       \
                                              },                                                                                          \
                                              [] { return ::based::config_help<ConfigStruct>(); }};                                       \
    return info;                                                                                                                          \
  }
