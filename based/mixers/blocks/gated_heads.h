// The common base of GLA, DeltaNet and Gated DeltaNet: projections to heads, short convolutions on them, a recurrence whose gates the
// derived class computes, RMSNorm of each head's output, an output gate and the output projection.
#pragma once
#include <memory>
#include <string>

#include "based/mixers/blocks/short_convolution.h"

namespace based {

// Options of all derived classes. Each sets its authors' defaults and adds its own options.
struct GatedHeadsConfig {
  int64_t heads = 4;
  bool use_short_conv = true;
  int64_t conv_size = 4;
  bool conv_bias = false;
  bool use_gate = true;
  double norm_eps = 1e-5;
  bool rescale_output = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "heads");
    field("use_short_conv", use_short_conv, "short convolutions with SiLU on queries, keys and values");
    field("conv_size", conv_size, "tokens that the short convolutions cover, the current one included");
    field("conv_bias", conv_bias, "biases of the short convolutions");
    field("use_gate", use_gate, "output gate: multiplies the heads' outputs by SiLU of a projection of the input");
    field("norm_eps", norm_eps, "added to the mean square in the norm of a head's output");
    field("rescale_output", rescale_output,
          "initial output projection N(0, 0.02/sqrt(2 layers)), as in language models; otherwise N(0, 0.02), as in the recall models");
  }
};

// Returns factor · width, rounded down: the width of all heads together. Throws UsageError that names the mixer and the option if it is not
// a multiple of `heads`.
int64_t expanded_width(const char* mixer, const char* option, double factor, int64_t width, int64_t heads);

// Sets the inputs of the delta rule: normalises queries and keys to length 1, and sets beta = max_beta · sigmoid(logits), with logits
// [tokens, heads]. If logits are undefined, beta stays 1.
void use_delta_rule(ops::GatedDeltaRuleInputs& in, const Tensor& logits, double max_beta = 1);

// State: "kv" [slots, heads, key_dim, value_dim], and "q_conv", "k_conv", "v_conv" [slots, channels, conv_size − 1].
class GatedHeads : public BlockMixer {
 public:
  MixerState make_state(int64_t slots) const override;
  Formula state_formula(int64_t tokens) const override;  // d_key and d_value are the widths of all heads together
  std::optional<double> sequence_flops(int64_t tokens) const override;

 protected:
  struct Widths {
    int64_t key = 0, value = 0;  // the widths of all heads together
  };
  GatedHeads(const char* mixer, const GatedHeadsConfig& config, const MixerContext& context, const Widths& widths);
  Tensor run(const Tensor& x, const Call& call) override;
  // Adds the derived class's gates to `in`, whose q, k, v and scale are already set.
  virtual void add_gates(const Tensor& x, ops::GatedDeltaRuleInputs& in) const = 0;
  // Multiply-adds per element of the state and token: the update and the readout; the delta rule also reads the value stored under the key.
  virtual double state_products() const { return 2; }

  // Registers a projection of the mixer's input.
  std::shared_ptr<Projection> add_projection(const std::string& name, int64_t width, bool bias = false);

 private:
  Tensor split_heads(const std::string& name, const ShortConvolution* conv, const Tensor& projected, const Call& call) const;

  GatedHeadsConfig config_;
  int64_t d_model_;
  Widths widths_;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, g_proj_, o_proj_;
  std::shared_ptr<ShortConvolution> q_conv_, k_conv_, v_conv_;
  Tensor norm_weight_;  // [value_dim], shared by all heads
};

}  // namespace based
