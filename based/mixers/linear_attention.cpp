// Linear attention: φ(q)·φ(k) replaces exp(q·k), so that the sums over past tokens are a state of fixed size. φ is any feature map.
#include "based/ops/linear_attention/linear_attention.h"

#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
#include "based/ops/framework/arguments.h"

namespace based {
namespace {

struct LinearAttentionConfig {
  int64_t heads = 16;
  int64_t feature_dim = 16;
  int64_t head_dim = 0;
  std::string feature_map = "pos_elu";
  Config feature_options{Config::Table{}};
  double eps = 1e-12;
  bool bias = false;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads");
    field("feature_dim", feature_dim, "size of a head's queries and keys, which the feature map expands");
    field("head_dim", head_dim, "size of a head's values; 0: d_model / heads");
    field("feature_map", feature_map, feature_map_names().c_str());
    field("feature_options", feature_options, "the feature map's options");
    field("eps", eps, "added to the denominator");
    field("bias", bias, "biases in the projections");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

class LinearAttention final : public Mixer {
 public:
  LinearAttention(const LinearAttentionConfig& config, const MixerContext& context) : config_(config) {
    check_option("linear_attention", "heads", config.heads, 1, 4096);
    check_option("linear_attention", "feature_dim", config.feature_dim, 1, 65536);
    if (config_.head_dim == 0)
      config_.head_dim = divided("linear_attention", "d_model", context.d_model, "heads", config.heads, "; give head_dim");
    check_option("linear_attention", "head_dim", config_.head_dim, 1, 65536);
    check_number("linear_attention", "eps", config.eps, 0);
    const int64_t d = context.d_model;
    q_proj_ = register_module("q_proj", std::make_shared<Projection>(d, config.heads * config.feature_dim, config.bias));
    k_proj_ = register_module("k_proj", std::make_shared<Projection>(d, config.heads * config.feature_dim, config.bias));
    v_proj_ = register_module("v_proj", std::make_shared<Projection>(d, config.heads * config_.head_dim, config.bias));
    const double out_std = config.rescale_output ? output_initial_std(context.layers) : initial_std;
    o_proj_ = register_module("o_proj", std::make_shared<Projection>(config.heads * config_.head_dim, d, config.bias, out_std));
    map_ = register_module("feature_map", find_feature_map(config.feature_map).make(config.feature_options, config.feature_dim));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Inputs in = project(x, pass);
    return output(ops::linear_attention_without_state(in.q, in.k, in.v, pass.cu_seqlens(), config_.eps));
  }

  // "kv" [slots, heads, features, head_dim] and the denominator's "k" [slots, heads, features]; fp32, fp64 in fp64.
  MixerState make_state(int64_t slots) const override {
    const auto options = sum_options(q_proj_->weight());
    return MixerState({{"kv", torch::zeros({slots, config_.heads, map_->features(), config_.head_dim}, options)},
                       {"k", torch::zeros({slots, config_.heads, map_->features()}, options)}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula heads{"heads", config_.heads}, features{"features", map_->features()}, head_dim{"head_dim", config_.head_dim};
    return sum_bytes(q_proj_->weight()) * heads * features * (head_dim + 1);
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override {
    return 4 * static_cast<double>(config_.heads * map_->features() * (config_.head_dim + 1));
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Inputs in = project(x, pass);
    return output(ops::linear_attention_prefill(in.q, in.k, in.v, pass.cu_seqlens(), state["kv"], state["k"], pass.slots(), config_.eps));
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Inputs in = project(x, pass);
    Tensor &kv = state["kv"], &sums = state["k"];
    const auto recur = [&](const Pass& round, const Tensor& q, const Tensor& k, const Tensor& v) {
      return ops::linear_attention_step(q, k, v, kv, sums, round.slots(), config_.eps);
    };
    return output(step_in_rounds(pass, {kv, sums}, recur, in.q, in.k, in.v));
  }

  bool steps_in_rounds() const override { return true; }

 private:
  struct Inputs {
    Tensor q, k, v;
  };

  // The map computes in the accumulation type, so that its features are rounded only once.
  Inputs project(const Tensor& x, const Pass& pass) const {
    const auto projected = [&](const Projection& projection) {
      return projection.forward(x).view({-1, config_.heads, config_.feature_dim}).to(ops::sum_type(x));
    };
    const Tensor q = map_->query_features(projected(*q_proj_), pass), k = map_->forward(projected(*k_proj_), pass);
    return {q.to(x.scalar_type()), k.to(x.scalar_type()), v_proj_->forward(x).view({-1, config_.heads, config_.head_dim})};
  }
  Tensor output(const Tensor& y) const { return o_proj_->forward(y.reshape({y.size(0), config_.heads * config_.head_dim})); }

  LinearAttentionConfig config_;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<FeatureMap> map_;
};

}  // namespace

BASED_DEFINE_MIXER(linear_attention, LinearAttention, LinearAttentionConfig,
                   "linear attention with any feature map: all past tokens in a state of fixed size")

}  // namespace based
