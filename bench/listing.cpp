#include "bench/listing.h"

#include <cmath>

#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/projection.h"

namespace based::bench::listing {
namespace {

constexpr double kEpsilon = 1e-12;

struct ListingConfig {
  int64_t heads = 16;
  int64_t feature_dim = 16;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads");
    field("feature_dim", feature_dim, "size d' of a head's queries and keys; the state holds 1 + d' + d'^2 features");
  }
};

class ListingMixer final : public Mixer {
 public:
  ListingMixer(const ListingConfig& config, const MixerContext& context)
      : heads_(config.heads),
        feature_dim_(config.feature_dim),
        head_dim_(divided("listing_taylor_attention", "d_model", context.d_model, "heads", config.heads)) {
    const int64_t d = context.d_model;
    q_proj_ = register_module("q_proj", std::make_shared<Projection>(d, heads_ * feature_dim_, false));
    k_proj_ = register_module("k_proj", std::make_shared<Projection>(d, heads_ * feature_dim_, false));
    v_proj_ = register_module("v_proj", std::make_shared<Projection>(d, heads_ * head_dim_, false));
    o_proj_ = register_module("o_proj", std::make_shared<Projection>(heads_ * head_dim_, d, false, output_initial_std(context.layers)));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override { return all_rows(x, pass.rows(), nullptr, {}); }

  MixerState make_state(int64_t slots) const override {
    const Sums sums = zero_sums(slots, heads_, feature_dim_, head_dim_, q_proj_->weight().options().requires_grad(false));
    return MixerState({{"kv", sums.kv}, {"k", sums.k}});
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override { return all_rows(x, pass.rows(), &state, pass.slots()); }

  // The engine gives slots in ascending order, so a step of as many rows as slots updates the whole state, without copies.
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Tensor q = q_proj_->forward(x).view({-1, heads_, feature_dim_}), k = k_proj_->forward(x).view({-1, heads_, feature_dim_}),
                 v = v_proj_->forward(x).view({-1, heads_, head_dim_});
    const bool all = x.size(0) == state.slots();
    Sums sums = all ? Sums{state["kv"], state["k"]} : sums_of(state, pass.slots());
    const Tensor y = taylor_step(q, k, v, sums);
    if (!all) put(state, pass.slots(), sums);
    return o_proj_->forward(y.reshape({x.size(0), heads_ * head_dim_}));
  }

  std::optional<double> sequence_flops(int64_t /*tokens*/) const override {
    return static_cast<double>(4 * heads_ * (1 + feature_dim_ + feature_dim_ * feature_dim_) * (head_dim_ + 1));
  }

 private:
  static Sums sums_of(const MixerState& state, const Slots& slots) {
    return {state["kv"].index_select(0, slots), state["k"].index_select(0, slots)};
  }
  static void put(MixerState& state, const Slots& slots, const Sums& sums) {
    state.put("kv", slots, sums.kv);
    state.put("k", slots, sums.k);
  }

  // [rows · tokens, heads · dim] -> [rows, heads, tokens, dim]
  Tensor by_heads(const Tensor& x, int64_t rows, int64_t dim) const {
    return x.view({rows, x.size(0) / rows, heads_, dim}).transpose(1, 2);
  }

  // Rows of equal length. Without a state they start from zero.
  Tensor equal_rows(const Tensor& x, int64_t rows, MixerState* state, const Slots& slots) {
    const Tensor q = by_heads(q_proj_->forward(x), rows, feature_dim_), k = by_heads(k_proj_->forward(x), rows, feature_dim_),
                 v = by_heads(v_proj_->forward(x), rows, head_dim_);
    Tensor y;
    if (state == nullptr) {
      y = taylor_attention(q, k, v);
    } else {
      Sums sums = sums_of(*state, slots);
      y = taylor_attention(q, k, v, &sums);
      put(*state, slots, sums);
    }
    return o_proj_->forward(y.transpose(1, 2).reshape({x.size(0), heads_ * head_dim_}));
  }

  Tensor all_rows(const Tensor& x, const Sequences& rows, MixerState* state, const Slots& slots) {
    if (rows.equal_length() && rows.tokens() > 0) return equal_rows(x, rows.rows(), state, slots);
    Tensor y = torch::zeros_like(x);
    for (int64_t row = 0; row < rows.rows(); ++row) {
      const int64_t begin = rows.starts()[static_cast<size_t>(row)], length = rows.length(row);
      if (length == 0) continue;
      const Slots slot = state == nullptr ? Slots() : slots.narrow(0, row, 1);
      y.narrow(0, begin, length).copy_(equal_rows(x.narrow(0, begin, length), 1, state, slot));
    }
    return y;
  }

  int64_t heads_, feature_dim_, head_dim_;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, o_proj_;
};

BASED_DEFINE_MIXER(listing_taylor_attention, ListingMixer, ListingConfig, "Taylor attention by the paper's PyTorch listing")

}  // namespace

Tensor features(const Tensor& x) {
  const auto d = static_cast<double>(x.size(-1));
  const Tensor squares = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) / std::sqrt(2.0);
  return torch::cat({torch::ones_like(x.narrow(-1, 0, 1)), x / std::sqrt(std::sqrt(d)), squares / std::sqrt(d)}, -1);
}

Sums zero_sums(int64_t rows, int64_t heads, int64_t feature_dim, int64_t head_dim, const torch::TensorOptions& options) {
  const int64_t width = 1 + feature_dim + feature_dim * feature_dim;
  return {torch::zeros({rows, heads, head_dim, width}, options), torch::zeros({rows, heads, width}, options)};
}

Tensor taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, Sums* sums) {
  const Tensor q_features = features(q), k_features = features(k);
  // Large tensors are replaced one by one, so that at most two of them exist at a time.
  Tensor large = k_features.unsqueeze(-2) * v.unsqueeze(-1);
  large = large.cumsum(2);
  const Tensor kv = sums == nullptr ? Tensor() : large.select(2, -1).clone();
  large = q_features.unsqueeze(-2) * large;
  Tensor numerator = large.sum(-1);
  const Tensor k_sums = k_features.cumsum(2);
  Tensor denominator = (q_features * k_sums).sum(-1, /*keepdim=*/true);
  if (sums != nullptr) {
    numerator = numerator + torch::matmul(q_features, sums->kv.transpose(-1, -2));
    denominator = denominator + torch::matmul(q_features, sums->k.unsqueeze(-1));
    *sums = {sums->kv + kv, sums->k + k_sums.select(2, -1)};
  }
  return numerator / (denominator + kEpsilon);
}

Tensor taylor_attention_quadratic(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = torch::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
  const Tensor weights = (1 + scores + scores * scores / 2).tril();
  return torch::matmul(weights, v) / (weights.sum(-1, /*keepdim=*/true) + kEpsilon);
}

Tensor taylor_step(const Tensor& q, const Tensor& k, const Tensor& v, Sums& sums) {
  const Tensor q_features = features(q), k_features = features(k);
  sums.kv += k_features.unsqueeze(-2) * v.unsqueeze(-1);
  sums.k += k_features;
  const Tensor numerator = (q_features.unsqueeze(-2) * sums.kv).sum(-1);
  return numerator / ((q_features * sums.k).sum(-1, /*keepdim=*/true) + kEpsilon);
}

Tensor window_step(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor weights = torch::softmax(torch::einsum("bhd,bhnd->bhn", {q, k}), -1);
  return torch::einsum("bhn,bhnd->bhd", {weights, v});
}

ModelConfig without_our_kernels(ModelConfig config) {
  static const bool registered = (register_mixer(mixer_info_listing_taylor_attention()), true);
  BASED_ASSERT(registered);
  for (auto& [name, options] : config.mixers) {
    const Config* const type = options.find("type");
    if (type == nullptr || !std::holds_alternative<std::string>(type->value())) continue;
    if (std::get<std::string>(type->value()) == "taylor_attention") options.set("type", Config(std::string("listing_taylor_attention")));
  }
  return config;
}

}  // namespace based::bench::listing
