// DeltaNet (Schlag et al. 2021, Yang et al. 2024): the delta rule corrects the value stored under a key instead of adding to it,
// S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀk_t)ᵀ, with queries and keys of length 1.
#include "based/mixers/blocks/gated_heads.h"

namespace based {
namespace {

struct DeltaNetConfig : GatedHeadsConfig {
  double expand_k = 1, expand_v = 1;
  bool use_beta = true;
  bool allow_neg_eigval = false;
  DeltaNetConfig() { use_gate = false; }
  template <class Visitor>
  void visit(Visitor&& field) {
    field("expand_k", expand_k, "width of all queries, and of all keys, in multiples of d_model");
    field("expand_v", expand_v, "width of all values in multiples of d_model");
    field("use_beta", use_beta, "a projection of the input sets beta, the part of the error that is corrected; otherwise beta is 1");
    field("allow_neg_eigval", allow_neg_eigval, "beta ranges up to 2 instead of 1");
    GatedHeadsConfig::visit(field);
  }
};

class DeltaNet final : public GatedHeads {
 public:
  DeltaNet(const DeltaNetConfig& config, const MixerContext& context)
      : GatedHeads("delta_net", config, context, widths(config, context.d_model)), max_beta_(config.allow_neg_eigval ? 2 : 1) {
    if (config.use_beta) b_proj_ = full_precision(add_projection("b_proj", config.heads));
  }

 private:
  static Widths widths(const DeltaNetConfig& config, int64_t d_model) {
    check_option("delta_net", "heads", config.heads, 1, 4096);
    return {expanded_width("delta_net", "expand_k", config.expand_k, d_model, config.heads),
            expanded_width("delta_net", "expand_v", config.expand_v, d_model, config.heads)};
  }

  void add_gates(const Tensor& x, ops::GatedDeltaRuleInputs& in) const override {
    use_delta_rule(in, b_proj_ ? b_proj_->forward(x) : Tensor(), max_beta_);
  }

  double state_products() const override { return 3; }

  double max_beta_;
  std::shared_ptr<Projection> b_proj_;
};

}  // namespace

BASED_DEFINE_MIXER(delta_net, DeltaNet, DeltaNetConfig,
                   "DeltaNet: linear attention by the delta rule, which corrects the value stored under a key")

}  // namespace based
