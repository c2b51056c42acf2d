#include "based/mixers/softmax_attention.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/mixers/kit/step_history.h"
#include "based/ops/attention/attention_step.h"
#include "based/ops/attention/rotary_attention_step.h"
#include "based/ops/linear/split_columns.h"

namespace based {

SoftmaxAttention::SoftmaxAttention(const char* name, const SoftmaxAttentionConfig& config, int64_t window, const MixerContext& context)
    : config_(config), window_(window), layer_(context.layer) {
  const int64_t d_model = context.d_model;
  check_option(name, "heads", config.heads, 1, 4096);
  head_dim_ = divided(name, "d_model", d_model, "heads", config.heads);
  check_option(name, "d_model / heads", head_dim_, 1, 256);
  if (config_.kv_heads == 0) config_.kv_heads = config_.heads;
  check_option(name, "kv_heads", config_.kv_heads, 1, config_.heads);
  divided(name, "heads", config_.heads, "kv_heads", config_.kv_heads);
  if (config_.rotary_dim == -1) config_.rotary_dim = head_dim_;
  check_option(name, "rotary_dim", config_.rotary_dim, 0, head_dim_);
  if (config_.rotary_dim % 2 != 0) {
    throw UsageError(std::string(name) + ": rotary_dim must be even, got " + std::to_string(config_.rotary_dim) +
                     "; give rotary_dim = 0 for no positions");
  }
  if (!(config.rotary_base > 0)) throw UsageError(std::string(name) + ": rotary_base must be positive");
  if (!(config.dropout >= 0 && config.dropout < 1)) throw UsageError(std::string(name) + ": dropout must be 0 to below 1");
  qkv_proj_ = register_module("qkv_proj",
                              std::make_shared<Projection>(d_model, (config_.heads + 2 * config_.kv_heads) * head_dim_, config.qkv_bias));
  out_proj_ =
      register_module("out_proj", std::make_shared<Projection>(d_model, d_model, config.out_bias, output_initial_std(context.layers)));
}

Tensor SoftmaxAttention::forward(const Tensor& x, const Pass& pass) {
  const Inputs in = project(x, pass);
  return output(ops::causal_attention(in.q, in.k, in.v, pass.cu_seqlens(), pass.cu_seqlens(), window_, scale(), dropout(pass)));
}

MixerState SoftmaxAttention::make_state(int64_t slots) const {
  const auto options = state_options(qkv_proj_->weight());
  const bool grows = window_ == 0;
  return MixerState({{"k", torch::zeros({slots, window_, config_.kv_heads, head_dim_}, options), grows},
                     {"v", torch::zeros({slots, window_, config_.kv_heads, head_dim_}, options), grows}});
}

Formula SoftmaxAttention::state_formula(int64_t tokens) const {
  const Formula length = window_ == 0 ? Formula{"tokens", tokens} : Formula{"window", window_};
  return 2 * (state_number_bytes(qkv_proj_->weight()) * length) * Formula{"kv_heads", config_.kv_heads} *
         Formula{"d_model / heads", head_dim_};
}

std::optional<double> SoftmaxAttention::sequence_flops(int64_t tokens) const {
  const auto length = static_cast<double>(tokens), window = window_ == 0 ? length : std::min(length, static_cast<double>(window_));
  const double mean_keys = (window * (window + 1) / 2 + (length - window) * window) / length;
  return 4 * static_cast<double>(config_.heads * head_dim_) * mean_keys;
}

Tensor SoftmaxAttention::prefill(const Tensor& x, MixerState& state, const Pass& pass) {
  const Inputs in = project(x, pass);
  StepHistory history(state, pass, "k");
  const Tensor k = history.extend("k", in.k), v = history.extend("v", in.v);
  return output(ops::causal_attention(in.q, k, v, pass.cu_seqlens(), history.joined_cu_seqlens(), window_, scale(), dropout(pass)));
}

Tensor SoftmaxAttention::step(const Tensor& x, MixerState& state, const Pass& pass) {
  dropout(pass);  // throws Error for a model in training mode, since a step's pass has no draws
  const ops::AttentionCache cache = attention_cache(state, pass);
  const auto attend = [&](const Pass& round, const Tensor& qkv) {
    return ops::attention_step(qkv, cache, round.positions(), round.slots(), scale(), rotation());
  };
  const ops::Rotation turn = rotation();
  if (window_ == 0) return output(step_in_rounds(pass, {}, attend, qkv_proj_->forward(x)));
  if (turn.dim == 0 || turn.interleaved) return output(step_in_rounds(pass, {cache.k, cache.v}, attend, qkv_proj_->forward(x)));
  const auto attend_tokens = [&](const TokensOfSequence& all, const Tensor& qkv) {
    Tensor k = cache.k, v = cache.v;
    return ops::rotary_attention_tokens(qkv, k, v, pass.positions(), all.slot, {all.kept[0], all.kept[1]}, all.tokens, scale(), turn.dim,
                                        turn.base);
  };
  return output(step_tokens(pass, {cache.k, cache.v}, attend, attend_tokens, qkv_proj_->forward(x)));
}

SoftmaxAttention::Inputs SoftmaxAttention::project(const Tensor& x, const Pass& pass) const {
  const int64_t q = config_.heads * head_dim_, kv = config_.kv_heads * head_dim_;
  const auto heads = [this](const Tensor& columns) { return columns.view({columns.size(0), columns.size(1) / head_dim_, head_dim_}); };
  Tensor qkv = qkv_proj_->forward(x);
  if (config_.rotary_dim > 0) qkv = ops::rotary_(qkv, pass.positions(), rotation());
  const auto columns = ops::split_columns(qkv, {q, kv, kv});
  return {heads(columns[0]), heads(columns[1]), heads(columns[2])};
}

ops::Rotation SoftmaxAttention::rotation() const {
  return {config_.heads + config_.kv_heads, head_dim_, config_.rotary_dim, config_.rotary_base, config_.rotary_interleaved};
}

Tensor SoftmaxAttention::output(const Tensor& y) const { return out_proj_->forward(y.reshape({-1, config_.heads * head_dim_})); }

ops::AttentionDropout SoftmaxAttention::dropout(const Pass& pass) const {
  if (!is_training() || config_.dropout == 0) return {};
  return {config_.dropout, pass.draws(), /*place=*/1 + layer_};
}

double SoftmaxAttention::scale() const { return 1 / std::sqrt(static_cast<double>(head_dim_)); }

}  // namespace based
