// Feature maps of linear attention: what makes queries and keys into features whose inner products are the weights. A map is one file,
// based/mixers/feature_maps/foo.cpp, and one line in feature_maps.def.
#pragma once
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "based/core/config.h"
#include "based/mixers/parameters.h"
#include "based/mixers/pass.h"
#include "based/ops/torch.h"

namespace based {

using torch::Tensor;

// One map is shared by queries and keys and by all heads. What it learns is registered as in any torch module; what it draws and keeps, as
// a parameter without a gradient, so that it is saved.
class FeatureMap : public torch::nn::Module {
 public:
  explicit FeatureMap(int64_t features) : features_(features) {}
  // x [tokens, heads, width] -> [tokens, heads, features()], fp32 (fp64 in fp64) whatever the activations' type. Differentiable. In a step
  // a row's bits must depend on no other row: + − · /, comparisons, ops/rowwise.h and what is below keep to that. Where tokens stand in
  // their sequences, `pass` says.
  virtual Tensor forward(const Tensor& x, const Pass& pass) const = 0;
  // The same of queries, whose features a map may scale: a token's weights are divided by their sum.
  virtual Tensor of_queries(const Tensor& x, const Pass& pass) const { return forward(x, pass); }
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
const FeatureMapInfo& find_feature_map(const std::string& name);  // throws UsageError naming the nearest
const std::string& feature_map_names();                           // "relu, square, …", of an option that names one

// What maps are made of: functions of rows, whose bits depend on the row alone.
Tensor product(const Tensor& x, const Tensor& weight);  // x [tokens, heads, width] · weight[features, width]ᵀ, in x's type
Tensor softmax_of_rows(const Tensor& x);                // over the last dimension

// Options that several maps have.
struct NoFeatureMapOptions {
  template <class Visitor>
  void visit(Visitor&&) {}
};
struct ScaleOptions {
  double scale = 1;
  Tensor scaled(const Tensor& x) const { return scale == 1 ? x : x * scale; }
  template <class Visitor>
  void visit(Visitor&& field) {
    field("scale", scale, "x is multiplied by it first");
  }
};
struct FloorAloneOptions {
  double floor = 1e-12;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("floor", floor, "the least value");
  }
};
struct FloorOptions : ScaleOptions, FloorAloneOptions {
  template <class Visitor>
  void visit(Visitor&& field) {
    ScaleOptions::visit(field);
    FloorAloneOptions::visit(field);
  }
};
// These options, if they are in range; throws UsageError "relu: floor must be a number of at least 0, got -1" where not.
template <class Options>
Options checked(const char* map, const Options& options) {
  if constexpr (requires { options.scale; }) check_number(map, "scale", options.scale, -std::numeric_limits<double>::max());
  if constexpr (requires { options.floor; }) check_number(map, "floor", options.floor, 0);
  return options;
}

}  // namespace based

// Ends a map's file. The class is constructed as Class(const ConfigStruct&, int64_t width), width being that of x.
#define BASED_DEFINE_FEATURE_MAP(name, Class, ConfigStruct, summary)                                                                      \
  const ::based::FeatureMapInfo& feature_map_info_##name() {                                                                              \
    static const ::based::FeatureMapInfo info{#name, summary,                                                                             \
                                              [](const ::based::Config& options, int64_t width) -> std::shared_ptr<::based::FeatureMap> { \
                                                return std::make_shared<Class>(::based::read_config<ConfigStruct>(options), width);       \
                                              },                                                                                          \
                                              [] { return ::based::config_help<ConfigStruct>(); }};                                       \
    return info;                                                                                                                          \
  }
