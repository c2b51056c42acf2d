// A learned projection to a wider dimension, followed by another map: a larger state without wider queries and keys.
#include <cmath>

#include "based/mixers/kit/feature_map.h"

namespace based {
namespace {

struct ProjectionMapOptions {
  int64_t width = 64;
  std::string then = "cosformer";
  Config options{Config::Table{}};
  template <class Visitor>
  void visit(Visitor&& field) {
    field("width", width, "width of the projected queries and keys");
    field("then", then, "the map that is applied to the projection");
    field("options", options, "that map's options");
  }
};

class ProjectionMap final : public FeatureMap {
 public:
  ProjectionMap(const ProjectionMapOptions& options, int64_t width) : ProjectionMap(options, width, next(options)) {}

  Tensor forward(const Tensor& x, const Pass& pass) const override { return then_->forward(product(x, proj_->weight()), pass); }

 private:
  ProjectionMap(const ProjectionMapOptions& options, int64_t width, std::shared_ptr<FeatureMap> then) : FeatureMap(then->features()) {
    proj_ = register_module(
        "proj", full_precision(std::make_shared<Projection>(width, options.width, false, 1 / std::sqrt(static_cast<double>(width)))));
    then_ = register_module("then", std::move(then));
  }
  static std::shared_ptr<FeatureMap> next(const ProjectionMapOptions& options) {
    check_option("projection", "width", options.width, 1, 65536);
    if (options.then == "projection") throw UsageError("projection: 'then' must be another map: two projections are one");
    return find_feature_map(options.then).make(options.options, options.width);
  }

  std::shared_ptr<Projection> proj_;
  std::shared_ptr<FeatureMap> then_;
};

}  // namespace

BASED_DEFINE_FEATURE_MAP(projection, ProjectionMap, ProjectionMapOptions, "a learned projection to `width`, then another map")

}  // namespace based
