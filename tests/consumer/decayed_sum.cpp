// The external program's mixer: s_t = decay ⊙ s_{t−1} + silu(v_t), y_t = W_o s_t.
#include "decayed_sum.h"

#include "based/mixers/kit/parameters.h"
#include "based/ops/framework/rows.h"
#include "based/ops/pointwise/rowwise.h"

namespace {

using based::MixerState, based::Pass, based::Projection, based::Sequences, based::Slots;
using torch::Tensor;

struct DecayedSumConfig {
  bool bias = false;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("bias", bias, "biases in the projections");
  }
};

class DecayedSum final : public based::Mixer {
 public:
  DecayedSum(const DecayedSumConfig& config, const based::MixerContext& context) : width_(context.d_model) {
    v_proj_ = register_module("v_proj", std::make_shared<Projection>(width_, width_, config.bias));
    o_proj_ =
        register_module("o_proj", std::make_shared<Projection>(width_, width_, config.bias, based::output_initial_std(context.layers)));
    rate_ = register_parameter("rate", based::initial_normal({width_}, 1));
  }

  Tensor forward(const Tensor& x, const Pass& pass) override { return run(x, pass.rows(), make_state(pass.rows().rows())["sum"]).first; }

  // "sum" [slots, d_model]
  MixerState make_state(int64_t slots) const override {
    return MixerState({{"sum", torch::zeros({slots, width_}, based::sum_options(rate_))}});
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override { return advance(x, pass.rows(), state, pass.slots()); }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    return advance(x, Sequences::equal(x.size(0), 1), state, pass.slots());
  }

 private:
  Tensor advance(const Tensor& x, const Sequences& rows, MixerState& state, const Slots& slots) const {
    const auto [y, last] = run(x, rows, state["sum"].index_select(0, slots));
    state.put("sum", slots, last);
    return y;
  }

  // Returns y [tokens, d_model] and the last sums of rows that start from the sums `initial` [rows, d_model].
  std::pair<Tensor, Tensor> run(const Tensor& x, const Sequences& rows, const Tensor& initial) const {
    const Tensor v = based::ops::rowwise::silu(v_proj_->forward(x)).to(initial.scalar_type());
    const Tensor decay = based::ops::rowwise::sigmoid(rate_.to(initial.scalar_type()));
    std::vector<Tensor> sums, last;
    for (int64_t row = 0; row < rows.rows(); ++row) {
      Tensor sum = initial.narrow(0, row, 1);
      for (int64_t t = rows.starts()[row]; t < rows.starts()[row + 1]; ++t) {
        sum = decay * sum + v.narrow(0, t, 1);
        sums.push_back(sum);
      }
      last.push_back(sum);
    }
    const Tensor y = based::ops::join(sums, {0, width_}, initial.options());
    return {o_proj_->forward(y.to(x.scalar_type())), based::ops::join(last, initial.sizes(), initial.options())};
  }

  int64_t width_ = 0;
  std::shared_ptr<Projection> v_proj_, o_proj_;
  Tensor rate_;
};

}  // namespace

BASED_DEFINE_MIXER(decayed_sum, DecayedSum, DecayedSumConfig, "sums that decay, a channel each")
