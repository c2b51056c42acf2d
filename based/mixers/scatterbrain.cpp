// ScatterBrain (Chen et al. 2021): softmax attention y = Σ w_j v_j / Σ w_j. Keys in the window have their exact weight w_j = e^(q·k/√d);
// positive random features estimate the weights of all earlier keys. When a key leaves the window, it is added to sums of features.
//
// The published causal form differs: it adds a separate softmax over the window to the estimate, so that weights sum to more than one; it
// scales features by their maximum over all tokens; and it subtracts the window's estimate only up to a factor.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/random_features.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/mixers/kit/step_history.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear/split_columns.h"

namespace based {
namespace {

struct ScatterbrainConfig {
  int64_t heads = 1;
  int64_t window = 64;
  int64_t feature_dim = 24;
  bool qkv_bias = true;
  bool out_bias = true;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("heads", heads, "attention heads, each of size d_model / heads");
    field("window", window, "keys that a token attends to exactly, itself included");
    field("feature_dim", feature_dim, "features of a key, an even number: two for each random row, of opposite directions");
    field("qkv_bias", qkv_bias, "bias of the projection to queries, keys and values");
    field("out_bias", out_bias, "bias of the output projection");
  }
};

constexpr int64_t kScatterbrainPiece = 512;  // queries scored at a time, which bounds the memory of scores

class Scatterbrain final : public Mixer {
 public:
  Scatterbrain(const ScatterbrainConfig& config, const MixerContext& context) : config_(config), d_model_(context.d_model) {
    check_option("scatterbrain", "heads", config.heads, 1, 4096);
    head_dim_ = divided("scatterbrain", "d_model", d_model_, "heads", config.heads);
    check_option("scatterbrain", "window", config.window, 1, int64_t{1} << 20);
    check_option("scatterbrain", "feature_dim", config.feature_dim, 2, 65536);
    divided("scatterbrain", "feature_dim", config.feature_dim, "2", 2);
    qkv_proj_ = register_module("qkv_proj", std::make_shared<Projection>(d_model_, 3 * d_model_, config.qkv_bias));
    out_proj_ =
        register_module("out_proj", std::make_shared<Projection>(d_model_, d_model_, config.out_bias, output_initial_std(context.layers)));
    // A parameter without a gradient: it is saved with the others and never trained.
    random_features_ = register_parameter("random_features", orthogonal_gaussian_rows(config.feature_dim / 2, head_dim_),
                                          /*requires_grad=*/false);
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Inputs in = project(x);
    return output(x, run(in, {}, ops::equal_runs(pass.rows().starts()), nullptr));
  }

  // "k" and "v" [slots, window, heads, head_dim]: a ring buffer of the latest keys and values. "kv" [slots, heads, feature_dim, head_dim]
  // and "features" [slots, heads, feature_dim]: sums over the keys before the window.
  MixerState make_state(int64_t slots) const override {
    const auto kept = state_options(qkv_proj_->weight()), sums = sum_options(qkv_proj_->weight());
    return MixerState({{"k", torch::zeros({slots, config_.window, config_.heads, head_dim_}, kept)},
                       {"v", torch::zeros({slots, config_.window, config_.heads, head_dim_}, kept)},
                       {"kv", torch::zeros({slots, config_.heads, config_.feature_dim, head_dim_}, sums)},
                       {"features", torch::zeros({slots, config_.heads, config_.feature_dim}, sums)}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula d_model{"d_model", d_model_}, heads{"heads", config_.heads};
    return 2 * (state_number_bytes(qkv_proj_->weight()) * Formula{"window", config_.window}) * d_model +
           sum_bytes(qkv_proj_->weight()) * Formula{"feature_dim", config_.feature_dim} * (d_model + heads);
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override { return advance(x, state, pass, false); }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    return advance(x, state, Pass(Sequences::equal(x.size(0), 1, x.device()), pass.slots(), pass.positions()), true);
  }

 private:
  struct Inputs {
    Tensor q, k, v;  // [tokens, heads, head_dim]
  };
  struct Sums {
    Tensor kv, features;  // [rows, heads, feature_dim, head_dim], [rows, heads, feature_dim]
  };

  Inputs project(const Tensor& x) const {
    const auto columns = ops::split_columns(qkv_proj_->forward(x), {d_model_, d_model_, d_model_});
    const auto heads = [this](const Tensor& t) { return t.unflatten(1, {config_.heads, head_dim_}); };
    return {heads(columns[0]), heads(columns[1]), heads(columns[2])};
  }

  Tensor output(const Tensor& x, const Tensor& y) const { return out_proj_->forward(y.flatten(1).to(x.scalar_type())); }

  // `alone` computes each row separately, so that its bits do not depend on the other rows.
  Tensor advance(const Tensor& x, MixerState& state, const Pass& pass, bool alone) const {
    const Inputs in = project(x);
    StepHistory history(state, pass, "k");
    const Inputs earlier{{}, history.advance("k", in.k), history.advance("v", in.v)};
    const auto before = ops::row_starts("scatterbrain", "the state's rows", history.earlier_cu_seqlens(), earlier.k.size(0));
    std::vector<ops::Run> runs;
    for (const ops::Run& run : ops::equal_runs(pass.rows().starts(), before))
      for (const ops::Run& part : alone ? ops::single_rows(run) : std::vector<ops::Run>{run}) runs.push_back(part);
    Sums sums{state["kv"].index_select(0, pass.slots()), state["features"].index_select(0, pass.slots())};
    const Tensor y = run(in, earlier, runs, &sums);
    state.put("kv", pass.slots(), sums.kv);
    state.put("features", pass.slots(), sums.features);
    return output(x, y);
  }

  // Returns [tokens, heads, head_dim] in the accumulation type. `sums`, if given, are the sums before each row and become those after it.
  Tensor run(const Inputs& in, const Inputs& earlier, const std::vector<ops::Run>& runs, Sums* sums) const {
    std::vector<Tensor> outputs, kv, features;
    for (const ops::Run& run : runs) {
      Sums run_sums =
          sums != nullptr ? Sums{sums->kv.narrow(0, run.first_row, run.rows), sums->features.narrow(0, run.first_row, run.rows)} : Sums{};
      if (run.length > 0) outputs.push_back(attend(in, earlier, run, run_sums, sums != nullptr).transpose(1, 2).flatten(0, 1));
      kv.push_back(run_sums.kv);
      features.push_back(run_sums.features);
    }
    if (sums != nullptr && !runs.empty()) *sums = {torch::cat(kv), torch::cat(features)};
    return ops::join(outputs, in.q.sizes(), in.q.options().dtype(ops::sum_type(in.q)));
  }

  // Processes rows of equal length with equally many earlier steps, one piece at a time. Returns [rows, heads, length, head_dim].
  Tensor attend(const Inputs& in, const Inputs& earlier, const ops::Run& run, Sums& sums, bool keeps_sums) const {
    const auto by_head = [](const Tensor& t) { return t.to(ops::sum_type(t)).transpose(1, 2); };
    const auto joined = [&](const Tensor& own, const Tensor& before) {
      const Tensor tokens = ops::tokens_of(own, run);
      return by_head(before.defined() ? torch::cat({ops::other_tokens_of(before, run), tokens}, 1) : tokens);
    };
    const Tensor q = by_head(ops::tokens_of(in.q, run)), k = joined(in.k, earlier.k), v = joined(in.v, earlier.v);
    const int64_t before = k.size(2) - run.length;
    std::vector<Tensor> outputs;
    for (int64_t at = 0; at < run.length; at += kScatterbrainPiece) {
      const int64_t count = std::min(kScatterbrainPiece, run.length - at),
                    first_key = std::max<int64_t>(0, before + at - (config_.window - 1));
      const int64_t keys = before + at + count - first_key;
      const Tensor k_part = k.narrow(2, first_key, keys), v_part = v.narrow(2, first_key, keys);
      const Features features = key_features(k_part);
      outputs.push_back(weighted(q.narrow(2, at, count), k_part, v_part, features, sums));
      const int64_t leaving = std::max<int64_t>(0, keys - (config_.window - 1));
      if (leaving > 0 && (keeps_sums || at + count < run.length))
        add(sums, (features.values * features.log_scale.exp()).narrow(2, 0, leaving), v_part.narrow(2, 0, leaving));
    }
    return torch::cat(outputs, 2);
  }

  static void add(Sums& sums, const Tensor& features, const Tensor& v) {
    const Tensor kv = torch::matmul(features.transpose(2, 3), v), count = features.sum(2);
    sums = sums.kv.defined() ? Sums{sums.kv + kv, sums.features + count} : Sums{kv, count};
  }

  // Features scaled so that the largest is 1, and the logarithm [rows, heads, tokens, 1] of the factor that undoes the scaling.
  struct Features {
    Tensor values, log_scale;
  };
  // ln(estimate · e^log_factor) for estimates by features. Estimates below `minimum` become a weight of 0.
  static Tensor logarithm(const Tensor& estimate, const Tensor& log_factor) {
    constexpr double minimum = 1e-30, never = -std::numeric_limits<double>::infinity();
    return (estimate.clamp_min(minimum).log() + log_factor).masked_fill(estimate < minimum, never);
  }

  // One softmax over the scores of keys in the window, the logarithms of the estimates of keys before the window, and the logarithm of the
  // estimate for `sums`. The queries belong to the last tokens of k.
  Tensor weighted(const Tensor& q, const Tensor& k, const Tensor& v, const Features& k_features, const Sums& sums) const {
    constexpr double never = -std::numeric_limits<double>::infinity();
    const int64_t count = q.size(2), keys = k.size(2), before = keys - count;
    const auto order = torch::dtype(torch::kInt64).device(q.device());
    const Tensor distance = torch::arange(before, keys, order).unsqueeze(1) - torch::arange(keys, order);
    const Tensor scores = torch::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(head_dim_));
    const Features q_features = query_features(q);
    const Tensor far = logarithm(torch::matmul(q_features.values, k_features.values.transpose(2, 3)),
                                 q_features.log_scale + k_features.log_scale.transpose(2, 3));
    const Tensor logits = torch::where(distance < config_.window, scores, far).masked_fill(distance < 0, never);
    if (!sums.kv.defined()) return torch::matmul(torch::softmax(logits, 3), v);

    const Tensor largest = sums.features.detach().amax(2).clamp_min(std::numeric_limits<float>::min()).unsqueeze(2).unsqueeze(3);
    const Tensor past = torch::matmul(q_features.values, sums.features.unsqueeze(3) / largest);
    const Tensor weights = torch::softmax(torch::cat({logits, logarithm(past, q_features.log_scale + largest.log())}, 3), 3);
    const Tensor past_values = torch::matmul(q_features.values, sums.kv / largest) / past.clamp_min(std::numeric_limits<float>::min());
    return torch::matmul(weights.narrow(3, 0, keys), v) + weights.narrow(3, keys, 1) * past_values;
  }

  // The features' exponents ±R z − |z|²/2, z = x / d^¼. The estimate of a weight is the mean over features of e^(query's) · e^(key's).
  Tensor exponents(const Tensor& x) const {
    const Tensor scaled = x * std::pow(static_cast<double>(head_dim_), -0.25);
    const Tensor products = torch::matmul(scaled, random_features_.to(x.scalar_type()).t());
    return torch::cat({products, -products}, 3) - scaled.square().sum(3, /*keepdim=*/true) / 2;
  }
  static Features scaled_exp(const Tensor& exponent) {
    const Tensor largest = exponent.detach().amax(3, /*keepdim=*/true);
    return {(exponent - largest).exp(), largest};
  }
  Features query_features(const Tensor& q) const { return scaled_exp(exponents(q)); }
  Features key_features(const Tensor& k) const { return scaled_exp(exponents(k) - std::log(static_cast<double>(config_.feature_dim))); }

  ScatterbrainConfig config_;
  int64_t d_model_, head_dim_ = 0;
  std::shared_ptr<Projection> qkv_proj_, out_proj_;
  Tensor random_features_;  // [feature_dim / 2, head_dim]
};

}  // namespace

BASED_DEFINE_MIXER(scatterbrain, Scatterbrain, ScatterbrainConfig,
                   "softmax attention, exact over the most recent tokens and estimated by random features over all before")

}  // namespace based
