// H3 (Fu et al. 2022): y = out(q ⊙ diagonal(shift(k) ⊙ v)). `shift` is a state space model with a shift matrix, which is a convolution of
// d_state taps. `diagonal` is a state space model with complex poles, which is a convolution as long as the sequence. With head_dim > 1,
// the outer product of a head's k and v replaces k ⊙ v, and q contracts the dimension of k.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "based/mixers/kit/derived_weight_cache.h"
#include "based/mixers/kit/long_filter.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/rounds.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/mixers/kit/wide_parameters.h"
#include "based/ops/conv/diagonal_filter.h"
#include "based/ops/conv/gated_long_conv.h"
#include "based/ops/conv/short_conv.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/framework/rows.h"
#include "based/ops/linear/linear.h"

namespace based {
namespace {

struct H3Config {
  int64_t d_state = 64;
  int64_t head_dim = 1;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("d_state", d_state, "taps of the shift model, and twice the poles of the diagonal model: an even number, 2..128");
    field("head_dim", head_dim, "channels per head; a head's keys and values are combined by an outer product");
  }
};

torch::TensorOptions fp32() { return torch::dtype(torch::kFloat32).device(parameter_device()); }

// The shift model: its state holds the last inputs, so y_t = Σ_j (Σ_i B_i C_{i+j}) k_{t−j} + D k_t.
class ShiftModel : public torch::nn::Module {
 public:
  ShiftModel(int64_t channels, int64_t taps) {
    b_ = register_parameter("B", torch::cat({torch::ones({channels, 1}, fp32()), torch::zeros({channels, taps - 1}, fp32())}, 1));
    c_ = register_parameter("C", initial_filter({channels, taps}, taps));
    d_ = register_parameter("D", initial_normal({channels}, 1));
  }

  // [channels, taps], the current token's tap first, in fp32 (fp64 for fp64 models).
  Tensor taps() const {
    const at::ScalarType type = ops::sum_type(b_);
    const int64_t taps = b_.size(1);
    const Tensor shifted = at::constant_pad_nd(c_.to(type), {0, taps - 1}).unfold(1, taps, 1);  // [channels, i, j]: C_{i+j}
    const Tensor filter = torch::matmul(b_.to(type).unsqueeze(1), shifted).squeeze(1);
    return filter + at::constant_pad_nd(d_.to(type).unsqueeze(1), {0, taps - 1});
  }
  // The taps in the order of ops::short_conv, the current token's tap last.
  Tensor filter() const {
    return filter_cache_.get(*this, [this] { return taps().flip(1); });
  }

 private:
  Tensor b_, c_, d_;
  DerivedWeightCache<Tensor> filter_cache_;
};

// Sums over dimension 1 in an order that depends only on its size. The order of ATen's sums may depend on the other sizes too.
Tensor ordered_sum(Tensor x) {
  while (x.size(1) > 1) {
    const int64_t half = x.size(1) / 2;
    const Tensor sums = x.narrow(1, 0, half) + x.narrow(1, half, half);
    x = x.size(1) % 2 == 0 ? sums : torch::cat({sums, x.narrow(1, 2 * half, 1)}, 1);
  }
  return x.squeeze(1);
}

// The diagonal model: h_t = a h_{t−1} + b u_t, y_t = Re(c h_t) + D u_t, for each pole of each group of channels, with a, b and c from
// ops::DiscretePoles. Its parameters stay in fp32, as in the authors' code: bf16 would change dt by up to 1.6 %, and since a pole turns by
// about 200 radians while it decays, a different filter would result.
class DiagonalModel : public WideParameters {
 public:
  // A group of `copies` channels shares its poles: channel = group · copies + copy.
  DiagonalModel(int64_t groups, int64_t poles, int64_t copies) : groups_(groups), poles_(poles), copies_(copies) {
    log_dt_ = register_parameter("log_dt", initial_uniform({groups}, std::log(0.001), std::log(0.1)));
    log_decay_ = register_parameter("log_decay", torch::full({groups, poles}, std::log(0.5), fp32()));
    frequency_ = register_parameter("frequency", (torch::arange(poles, fp32()) * std::numbers::pi).repeat({groups, 1}));
    b_ = register_parameter("B", torch::cat({torch::ones({groups, poles, 1}, fp32()), torch::zeros({groups, poles, 1}, fp32())}, 2));
    c_ = register_parameter("C", initial_normal({groups, poles, 2}, 1 / std::numbers::sqrt2));
    d_ = register_parameter("D", initial_normal({groups}, 1));
  }

  // [slots, 2, poles, channels], real and imaginary parts, in fp32 (fp64 for fp64 models).
  Tensor make_state(int64_t slots) const { return torch::zeros({slots, 2, poles_, groups_ * copies_}, sum_options(log_dt_)); }

  // The impulse response [groups, count], count ≥ 1, in fp32 (fp64 for fp64 models). Tap 0 weighs the current token.
  Tensor filter(int64_t count) const { return ops::diagonal_filter(model(), count); }

  // One token for each of the state's rows: u and y [rows, channels].
  Tensor step(const Tensor& u, Tensor& state) const {
    const StepFactors f = step_factors_cache_.get(*this, [&] { return step_factors(u.scalar_type()); });
    const Tensor input = u.unsqueeze(1), re = state.select(1, 0), im = state.select(1, 1);
    const Tensor next = f.a * re - f.a_im * im + f.b * input, next_im = f.a * im + f.a_im * re + f.b_im * input;
    state = torch::stack({next, next_im}, 1);
    return ordered_sum(f.c * next - f.c_im * next_im) + f.d * u;
  }

  // The factors that process one piece of a sequence, in the type of sums. Real and imaginary parts are concatenated.
  struct Powers {
    Tensor read;   // [groups, 2 · poles, piece + 1]: maps the state h = (Re, Im) to Re(c a^t h)
    Tensor write;  // [groups, piece, 2 · poles]: b a^{piece−1−t}, an input's share of the state after the piece
    Tensor decay;  // complex [groups, poles, piece + 1]: a^t
    int64_t piece() const { return write.size(1); }
  };
  // For rows of at most max_length tokens.
  Powers powers(int64_t max_length) const {
    constexpr int64_t kPiece = 1024;  // bounds the memory of the factors
    const int64_t piece = std::clamp<int64_t>(max_length, 1, kPiece);
    const ops::DiscretePoles poles = ops::discretised(model());
    const at::ScalarType type = ops::sum_type(log_dt_);
    const Tensor decay = poles.powers(piece + 1);
    const Tensor read = poles.c.unsqueeze(-1) * decay, write = (poles.b.unsqueeze(-1) * decay.narrow(2, 0, piece)).flip(2);
    return {torch::cat({torch::real(read), -torch::imag(read)}, 1).to(type),
            torch::cat({torch::real(write), torch::imag(write)}, 1).to(type).transpose(1, 2), decay};
  }

  // The contribution of the states h [rows, 2, poles, channels] to the outputs of the next `length` ≤ piece tokens: [rows, length,
  // channels].
  Tensor response(const Tensor& h, int64_t length, const Powers& powers) const {
    const Tensor by_group = h.unflatten(3, {groups_, copies_}).permute({3, 0, 4, 1, 2}).reshape({groups_, -1, 2 * poles_});
    const Tensor y = torch::matmul(by_group, powers.read.narrow(2, 1, length));
    return y.view({groups_, h.size(0), copies_, length}).permute({1, 3, 0, 2}).flatten(2);
  }
  // The states after inputs u [rows, length ≤ piece, channels], from zero.
  Tensor written(const Tensor& u, const Powers& powers) const {
    const int64_t rows = u.size(0), length = u.size(1);
    const Tensor by_group = u.unflatten(2, {groups_, copies_}).permute({2, 0, 3, 1}).reshape({groups_, rows * copies_, length});
    const Tensor sums = torch::matmul(by_group, powers.write.narrow(1, powers.piece() - length, length));
    return sums.view({groups_, rows, copies_, 2, poles_}).permute({1, 3, 4, 0, 2}).flatten(3);
  }
  // The states h after `length` ≤ piece tokens without inputs.
  Tensor decayed(const Tensor& h, int64_t length, const Powers& powers) const {
    const Tensor decay = powers.decay.select(2, length).t().repeat_interleave(copies_, 1);
    const Tensor re = torch::real(decay).to(h.scalar_type()), im = torch::imag(decay).to(h.scalar_type());
    return torch::stack({re * h.select(1, 0) - im * h.select(1, 1), re * h.select(1, 1) + im * h.select(1, 0)}, 1);
  }

 private:
  ops::DiagonalPoles model() const { return {log_dt_, log_decay_, frequency_, b_, c_, d_}; }

  // The factors of a step: real and imaginary parts [poles, channels], and d [channels].
  struct StepFactors {
    Tensor a, a_im, b, b_im, c, c_im, d;
  };
  StepFactors step_factors(at::ScalarType type) const {
    const ops::DiscretePoles model = ops::discretised(this->model());
    const auto spread = [&](const Tensor& value) { return value.to(type).t().repeat_interleave(copies_, 1).contiguous(); };
    return {spread(torch::real(model.a)), spread(torch::imag(model.a)), spread(torch::real(model.b)),          spread(torch::imag(model.b)),
            spread(torch::real(model.c)), spread(torch::imag(model.c)), d_.to(type).repeat_interleave(copies_)};
  }

  int64_t groups_, poles_, copies_;
  Tensor log_dt_, log_decay_, frequency_, b_, c_, d_;  // A = −exp(log_decay) + i frequency
  DerivedWeightCache<StepFactors> step_factors_cache_;
};

class H3 final : public Mixer {
 public:
  H3(const H3Config& config, const MixerContext& context) : config_(config), d_model_(context.d_model) {
    check_option("h3", "d_state", config.d_state, 2, 128);
    if (config.d_state % 2 != 0) throw UsageError("h3: d_state must be even, got " + std::to_string(config.d_state));
    check_option("h3", "head_dim", config.head_dim, 1, 256);
    heads_ = divided("h3", "d_model", d_model_, "head_dim", config.head_dim);
    const auto projection = [&](const char* name) { return register_module(name, std::make_shared<Projection>(d_model_, d_model_, true)); };
    q_proj_ = projection("q_proj");
    k_proj_ = projection("k_proj");
    v_proj_ = projection("v_proj");
    shift_ = register_module("shift", std::make_shared<ShiftModel>(d_model_, config.d_state));
    diagonal_ = register_module("diagonal", std::make_shared<DiagonalModel>(heads_, config.d_state / 2, config.head_dim * config.head_dim));
    o_proj_ = projection("o_proj");
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const Tensor k = ops::gated_long_conv({}, k_proj_->forward(x), {}, shift_->taps(), pass.rows().starts());
    const Tensor filter = diagonal_->filter(std::max<int64_t>(1, pass.rows().max_length()));
    const Tensor y = ops::gated_long_conv(q_proj_->forward(x), k, v_proj_->forward(x), filter, pass.rows().starts());
    // Permutes o_proj's columns to the order of y's channels; see in_output_order().
    const Tensor weight = o_proj_->weight().view({d_model_, config_.head_dim, heads_}).transpose(1, 2).reshape({d_model_, d_model_});
    return ops::linear(y, weight, o_proj_->bias());
  }

  // "shift" [slots, d_model, d_state − 1]: the latest keys. "diagonal" [slots, 2, d_state / 2, d_model · head_dim]: real and imaginary
  // parts.
  MixerState make_state(int64_t slots) const override {
    return MixerState({{"shift", torch::zeros({slots, d_model_, config_.d_state - 1}, sum_options(q_proj_->weight()))},
                       {"diagonal", diagonal_->make_state(slots)}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula d_state{"d_state", config_.d_state}, head_dim{"head_dim", config_.head_dim};
    return sum_bytes(q_proj_->weight()) * Formula{"d_model", d_model_} * (d_state - 1 + d_state * head_dim);
  }

  // The shift model tap by tap; the diagonal model as a convolution of each pair of key and value channels, and its readout by q.
  std::optional<double> sequence_flops(int64_t tokens) const override {
    return static_cast<double>(d_model_) *
           (2.0 * static_cast<double>(config_.d_state) + static_cast<double>(config_.head_dim) * (long_convolution_flops(tokens) + 2));
  }

  // The inputs of the pass go through the long convolution of forward(), which never makes the outer products of keys and values. These are
  // made for the states after the pass only.
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Tensor q = q_proj_->forward(x), v = v_proj_->forward(x);
    const Tensor k = ops::short_conv_prefill(k_proj_->forward(x), shift_filter(x), {}, {}, /*silu=*/false, pass.cu_seqlens(),
                                             state["shift"], pass.slots());
    const int64_t longest = std::max<int64_t>(1, pass.rows().max_length());
    Tensor y = ops::gated_long_conv(q, k, v, diagonal_->filter(longest), pass.rows().starts());
    const DiagonalModel::Powers powers = diagonal_->powers(longest);
    std::vector<Tensor> responses;  // to the states before the pass, [tokens of a run, d_model]
    bool all_new = true;
    for (const ops::Run& run : ops::equal_runs(pass.rows().starts())) {
      const Slots slots = pass.slots().narrow(0, run.first_row, run.rows);
      const auto seen = pass.seen_on_host().begin() + run.first_row;
      const bool is_new = std::all_of(seen, seen + run.rows, [](int64_t tokens) { return tokens == 0; });
      const Tensor before = is_new ? Tensor() : state["diagonal"].index_select(0, slots);
      const Advanced advanced = advance(ops::tokens_of(q, run), ops::tokens_of(k, run), ops::tokens_of(v, run), powers, before);
      if (advanced.states.defined()) state.put("diagonal", slots, advanced.states);
      const bool responds = advanced.responses.defined();
      responses.push_back(responds ? advanced.responses : torch::zeros({run.rows * run.length, d_model_}, sum_options(x)));
      all_new = all_new && !responds;
    }
    if (!all_new) y = (y + torch::cat(responses)).to(x.scalar_type());
    return o_proj_->forward(in_output_order(y));
  }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    Tensor& keys = state["shift"];
    const auto shift = [&](const Pass& round, const Tensor& rows) {
      return ops::short_conv_step(rows, shift_filter(x), {}, {}, /*silu=*/false, keys, round.slots());
    };
    const Tensor k = step_in_rounds(pass, {keys}, shift, k_proj_->forward(x));
    const auto recur = [&](const Pass& round, const Tensor& rows) {
      Tensor h = state["diagonal"].index_select(0, round.slots());
      Tensor y = diagonal_->step(rows, h);
      state.put("diagonal", round.slots(), h);
      return y;
    };
    const Tensor y = step_in_rounds(pass, {state["diagonal"]}, recur, products(k, v_proj_->forward(x)));
    return o_proj_->forward(in_output_order(contracted(q_proj_->forward(x), y).to(x.scalar_type())));
  }

  bool steps_in_rounds() const override { return true; }

 private:
  Tensor shift_filter(const Tensor& x) const { return shift_->filter().to(x.scalar_type()); }

  // [..., heads, head_dim] in the type of sums.
  Tensor by_head(const Tensor& t) const { return t.to(ops::sum_type(t)).unflatten(-1, {heads_, config_.head_dim}); }
  // k_i v_j of each head: [..., d_model] -> [..., heads · head_dim · head_dim].
  Tensor products(const Tensor& k, const Tensor& v) const { return (by_head(k).unsqueeze(-1) * by_head(v).unsqueeze(-2)).flatten(-3); }
  // Σ_i q_i y_ij of each head: q [tokens, d_model], y [tokens, heads · head_dim · head_dim] -> [tokens, d_model].
  Tensor contracted(const Tensor& q, const Tensor& y) const {
    const Tensor read = y.unflatten(1, {heads_, config_.head_dim, config_.head_dim}) * by_head(q).unsqueeze(3);
    return ordered_sum(read.transpose(1, 2)).flatten(1);
  }
  // As in the authors' code, the output projection's input channels are [head_dim, heads], with the head as the faster dimension.
  Tensor in_output_order(const Tensor& y) const { return y.unflatten(1, {heads_, config_.head_dim}).transpose(1, 2).reshape(y.sizes()); }

  // The results of rows of tokens; undefined without tokens.
  struct Advanced {
    Tensor states;     // after them, [rows, 2, poles, channels]
    Tensor responses;  // contribution to y of the states before them, [rows · length, d_model]; undefined if these are zero
  };
  // q, k, v [rows, length, d_model]; `before`: the states, undefined if they are zero.
  Advanced advance(const Tensor& q, const Tensor& k, const Tensor& v, const DiagonalModel::Powers& powers, Tensor before) const {
    Tensor after;  // the states after the inputs, from zero
    std::vector<Tensor> responses;
    for (int64_t at = 0; at < q.size(1); at += powers.piece()) {
      const int64_t count = std::min(powers.piece(), q.size(1) - at);
      const auto piece = [&](const Tensor& t) { return t.narrow(1, at, count); };
      const Tensor written = diagonal_->written(products(piece(k), piece(v)), powers);
      after = after.defined() ? diagonal_->decayed(after, count, powers) + written : written;
      if (!before.defined()) continue;
      const Tensor response = diagonal_->response(before, count, powers);
      responses.push_back(contracted(piece(q).flatten(0, 1), response.flatten(0, 1)).view({q.size(0), count, d_model_}));
      before = diagonal_->decayed(before, count, powers);
    }
    if (responses.empty()) return {after, {}};
    return {before + after, torch::cat(responses, 1).flatten(0, 1)};
  }

  H3Config config_;
  int64_t d_model_, heads_ = 0;
  std::shared_ptr<Projection> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<ShiftModel> shift_;
  std::shared_ptr<DiagonalModel> diagonal_;
};

}  // namespace

BASED_DEFINE_MIXER(h3, H3, H3Config, "two state space models, one that shifts and one with complex poles, and products between them")

}  // namespace based
