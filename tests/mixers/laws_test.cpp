// Each law can fail: a plain mixer obeys all laws, and with one fault at a time it breaks the corresponding law.
#include "tests/mixers/laws.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "based/core/error.h"
#include "based/mixers/kit/parameters.h"
#include "based/mixers/kit/shapes_only.h"
#include "tests/mixers/subjects.h"

namespace based::laws {
namespace laws_test {

enum class Fault {
  none,
  step_differs,      // the step forgets the decay
  prefill_restarts,  // prefill ignores the state
  sees_future,       // an output depends on the last token
  batch_in_step,     // a row of a step depends on how many rows there are
  rows_beyond_16,    // the same, only for more than 16 rows
  rows_beyond_32,
  rows_beyond_64,     // where linear layers may round in another way: more than that
  last_of_rows,       // the last element of all rows of a step is computed in another way
  odd_width,          // a step's last channel is wrong if the width is odd
  state_in_place,     // prefill writes the state in place with gradients on
  slot_state_mixed,   // a step changes another slot
  leaks_across_rows,  // packed rows are treated as one row
  weighs_with_zero,   // a sum includes the next row with weight 0
  state_detached,     // no gradient through the state
  memory_outside,     // the mixer itself keeps data between calls
  half_state,         // sums in bf16, and without decay
  state_grows,        // a growing state that is not marked as such
  unregistered,       // a parameter that is not saved
  takes_memory,       // a parameter with memory under ShapesOnly
  uninitialised,      // an output element that is never written
  rounds_unkept,      // a step of several tokens does not keep the states between them
  wrong_formula,      // a formula with more bytes than the state
};

// s_t = 0.9 s_{t−1} + u_t, y_t = s_t ⊙ p, u = x·Wᵀ.
class Peer final : public Mixer {
 public:
  Peer(int64_t d_model, Fault fault) : fault_(fault), d_model_(d_model) {
    const torch::Device device = fault == Fault::takes_memory ? torch::kCPU : parameter_device();
    weight_ = register_parameter("weight", torch::randn({d_model, d_model}, device) / std::sqrt(static_cast<double>(d_model)));
    scale_ = torch::randn({d_model}, device);
    if (fault != Fault::unregistered) scale_ = register_parameter("scale", scale_);
  }

  Tensor forward(const Tensor& x, const Pass& pass) override {
    const int64_t rows = pass.rows().rows();
    MixerState state = make_state(rows);
    return prefill(x, state, Pass(pass.rows(), torch::arange(rows), torch::zeros({rows}, torch::kInt64)));
  }

  MixerState make_state(int64_t slots) const override {
    const auto type = weight_.scalar_type() == torch::kFloat64 ? torch::kFloat64
                      : fault_ == Fault::half_state            ? torch::kBFloat16
                                                               : torch::kFloat32;
    return MixerState({{"sum", torch::zeros({slots, d_model_}, state_options(weight_).dtype(type))}});
  }

  Formula state_formula(int64_t /*tokens*/) const override {
    const Formula width{"d_model", d_model_};
    return sum_bytes(weight_) * (fault_ == Fault::wrong_formula ? width + 1 : width);
  }

  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Sequences& rows = pass.rows();
    const Tensor u = torch::matmul(x, weight_.t()).to(state["sum"].scalar_type());
    const Tensor before = state["sum"].index_select(0, pass.slots());
    std::vector<Tensor> outputs, last;
    for (int64_t row = 0; row < rows.rows(); ++row) {
      Tensor sum = fault_ == Fault::prefill_restarts ? torch::zeros_like(before[row]) : before[row];
      if (fault_ == Fault::leaks_across_rows && !outputs.empty()) sum = sum + outputs.back();
      const Tensor extra = fault_ == Fault::sees_future && rows.length(row) > 0 ? 1e-3 * u[rows.starts()[row + 1] - 1] : Tensor();
      if (fault_ == Fault::weighs_with_zero && rows.starts()[row + 1] < u.size(0)) sum = sum + 0 * u[rows.starts()[row + 1]];
      for (int64_t t = rows.starts()[row]; t < rows.starts()[row + 1]; ++t) {
        sum = decay() * sum + u[t];
        outputs.push_back(extra.defined() ? sum + extra : sum);
      }
      last.push_back(fault_ == Fault::state_detached ? sum.detach() : sum);
    }
    if (fault_ == Fault::state_in_place) {
      state["sum"].index_copy_(0, pass.slots(), torch::stack(last));
    } else {
      state.put("sum", pass.slots(), torch::stack(last));
    }
    if (fault_ == Fault::state_grows) state["sum"] = torch::cat({state["sum"], torch::zeros_like(state["sum"])}, 1).narrow(1, 0, d_model_);
    return outputs.empty() ? x : output(torch::stack(outputs).to(x.scalar_type()));
  }

  bool steps_in_rounds() const override { return fault_ == Fault::rounds_unkept; }

  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override {
    const Slots& slots = pass.slots();
    std::vector<Tensor> sums;
    for (int64_t row = 0; row < x.size(0); ++row) {
      Tensor before = state["sum"].select(0, slots[row].item<int64_t>());
      Tensor after = (fault_ == Fault::step_differs ? 0.99 : 1) * decay() * before + torch::mv(weight_, x[row]).to(before.scalar_type());
      if (fault_ == Fault::memory_outside) after = after + 1e-6 * static_cast<double>(steps_++);
      if (x.size(0) > most_rows()) after = after * (1 + (fault_ == Fault::rows_beyond_64 ? 1e-3 : 1e-6));
      if (fault_ == Fault::last_of_rows && row + 1 == x.size(0)) after[-1] *= 1 + 1e-6;
      if (fault_ == Fault::odd_width && d_model_ % 2 != 0) after[-1] *= 1.01;
      before.copy_(after);
      sums.push_back(before.clone());
    }
    if (fault_ == Fault::slot_state_mixed) {
      const int64_t neighbour = (slots[0].item<int64_t>() + 1) % state.slots();
      state["sum"].select(0, neighbour).mul_(1.0001);
    }
    return output(torch::stack(sums).to(x.scalar_type()));
  }

 private:
  // Steps with more rows than this give other results.
  int64_t most_rows() const {
    switch (fault_) {
      case Fault::batch_in_step: return 1;
      case Fault::rows_beyond_16: return 16;
      case Fault::rows_beyond_32: return 32;
      case Fault::rows_beyond_64: return 64;
      default: return INT64_MAX;
    }
  }

  double decay() const { return fault_ == Fault::half_state ? 1 : 0.9; }

  Tensor output(const Tensor& sums) const {
    const Tensor y = sums * scale_.to(sums.scalar_type());
    if (fault_ != Fault::uninitialised) return y;
    const torch::NoGradGuard no_grad;
    Tensor copy = torch::empty_like(y);
    copy.narrow(1, 1, d_model_ - 1).copy_(y.narrow(1, 1, d_model_ - 1));
    return copy;
  }

  Fault fault_;
  int64_t d_model_;
  int64_t steps_ = 0;
  Tensor weight_, scale_;
};

Subject peer(Fault fault) {
  return {"peer", 12, "", [fault] { return std::make_shared<Peer>(12, fault); }};
}

const std::vector<int64_t> kLengths = {1, 2, 65};

class Laws : public testing::Test {
 protected:
  NanFill nan_fill_;
};

TEST_F(Laws, AreObeyedByAPlainMixer) {
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kBFloat16}) {
    EXPECT_EQ(forms_agree(peer(Fault::none), dtype, kLengths), "");
    EXPECT_EQ(causal(peer(Fault::none), dtype), "");
    EXPECT_EQ(rows_independent(peer(Fault::none), dtype), "");
    EXPECT_EQ(rounds_equal_steps(peer(Fault::none), dtype), "");
    EXPECT_EQ(packed_equals_separate(peer(Fault::none), dtype), "");
    EXPECT_EQ(rows_do_not_poison(peer(Fault::none), dtype), "");
    EXPECT_EQ(gradients_flow_through_state(peer(Fault::none), dtype), "");
    EXPECT_EQ(state_is_replaced_under_gradients(peer(Fault::none), dtype), "");
    EXPECT_EQ(state_is_a_value(peer(Fault::none), dtype), "");
    EXPECT_EQ(state_bytes_are_real(peer(Fault::none), dtype), "");
    EXPECT_EQ(state_formula_is_exact(peer(Fault::none), dtype), "");
    EXPECT_EQ(forward_is_exact(peer(Fault::none), dtype, kLengths), "");
    EXPECT_EQ(sizes_are_known_without_memory(peer(Fault::none), dtype), "");
    EXPECT_EQ(parameters_survive_saving(peer(Fault::none), dtype), "");
  }
  EXPECT_EQ(error_does_not_grow(peer(Fault::none), torch::kBFloat16, 2500), "");
}

TEST_F(Laws, FormsMustAgree) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16}) {
    EXPECT_NE(forms_agree(peer(Fault::prefill_restarts), dtype, kLengths), "");
    EXPECT_NE(forms_agree(peer(Fault::uninitialised), dtype, kLengths), "");
    EXPECT_NE(forward_is_exact(peer(Fault::uninitialised), dtype, kLengths), "");
  }
  EXPECT_NE(forms_agree(peer(Fault::step_differs), torch::kFloat32, kLengths), "");
}

TEST_F(Laws, CausalityIsSeen) { EXPECT_NE(causal(peer(Fault::sees_future), torch::kFloat32), ""); }

TEST_F(Laws, RowsMustNotMeet) {
  EXPECT_NE(rows_independent(peer(Fault::batch_in_step), torch::kFloat32), "");
  EXPECT_NE(rows_independent(peer(Fault::slot_state_mixed), torch::kFloat32), "");
  EXPECT_NE(rows_independent(peer(Fault::leaks_across_rows), torch::kFloat32), "");
}

TEST_F(Laws, RowsMustNotDependOnTheirNumber) {
  for (const Fault fault : {Fault::rows_beyond_16, Fault::rows_beyond_32, Fault::rows_beyond_64, Fault::last_of_rows})
    for (const char* options : {"", "other = 2"}) {
      Subject subject = peer(fault);
      subject.options = options;
      EXPECT_NE(rows_independent(subject, torch::kFloat32), "") << static_cast<int>(fault) << options;
    }
}

TEST_F(Laws, RoundsMustEqualSteps) {
  EXPECT_NE(rounds_equal_steps(peer(Fault::batch_in_step), torch::kFloat32), "");
  EXPECT_NE(rounds_equal_steps(peer(Fault::slot_state_mixed), torch::kFloat32), "");
  EXPECT_THAT(rounds_equal_steps(peer(Fault::rounds_unkept), torch::kFloat32), testing::HasSubstr("state's sum after 1 of a step of 2"));
}

TEST_F(Laws, PackedRowsMustNotMeet) { EXPECT_NE(packed_equals_separate(peer(Fault::leaks_across_rows), torch::kFloat32), ""); }

TEST_F(Laws, NeighboursMustNotBePoisoned) { EXPECT_NE(rows_do_not_poison(peer(Fault::weighs_with_zero), torch::kFloat32), ""); }

TEST_F(Laws, GradientsMustCrossTheState) { EXPECT_NE(gradients_flow_through_state(peer(Fault::state_detached), torch::kFloat64), ""); }

TEST_F(Laws, StatesMustNotBeWrittenWhereGradientsAreOn) {
  EXPECT_NE(state_is_replaced_under_gradients(peer(Fault::state_in_place), torch::kFloat32), "");
  EXPECT_EQ(gradients_flow_through_state(peer(Fault::state_in_place), torch::kFloat64), "");
}

// A mixer with heads that, like in most mixers, must divide the width.
struct PeerConfig {
  int64_t heads = 16, other = 7, odd = 1;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("other", other, "none of the widths");
    field("odd", odd, "must be even where there is more than one channel a head");
    field("heads", heads, "heads");
  }
};

MixerInfo peer_with_heads() {
  return {"peer", "",
          [](const Config& options, const MixerContext& context) -> std::shared_ptr<Mixer> {
            const auto config = read_config<PeerConfig>(options);
            if (config.heads < 2 || context.d_model % config.heads != 0 || (context.d_model % 2 != 0 && config.odd % 2 != 0))
              throw UsageError("peer: d_model is not a multiple of heads");
            return std::make_shared<Peer>(context.d_model, Fault::odd_width);
          },
          [] { return config_help<PeerConfig>(); }};
}

TEST_F(Laws, AreTriedAtOddAndLargeWidths) {
  std::string wrong, all;
  for (const Subject& subject : subjects_of(peer_with_heads(), {{10, "heads = 2"}})) {
    all += subject.name + ":" + std::to_string(subject.d_model) + " ";
    if (!forms_agree(subject, torch::kFloat32, kLengths).empty()) wrong += subject.name + " ";
  }
  EXPECT_EQ(all, "peer:64 peer_at33:33 peer_at256:256 peer_set1:10 ");
  EXPECT_EQ(wrong, "peer_at33 ");
  EXPECT_EQ(options_at(peer_with_heads(), 33)->toml, "odd = 0\nheads = 3");
  EXPECT_FALSE(options_at(peer_with_heads(), 1));
}

// All messages contain numbers.
TEST_F(Laws, SayWhatDiffersByHowMuchAndWhere) {
  const auto says = [](const std::string& pattern) { return testing::ContainsRegex(pattern); };
  const char* const size = "relative error [0-9.einf+-]+.* at \\[[0-9, ]+\\]: [-0-9.einfa+]+ instead of [-0-9.e+]+";
  EXPECT_THAT(causal(peer(Fault::sees_future), torch::kFloat32), says(size));
  EXPECT_THAT(packed_equals_separate(peer(Fault::leaks_across_rows), torch::kFloat32), says(size));
  EXPECT_THAT(rows_do_not_poison(peer(Fault::weighs_with_zero), torch::kFloat32), says(size));
  EXPECT_THAT(gradients_flow_through_state(peer(Fault::state_detached), torch::kFloat64), says(size));
  EXPECT_THAT(state_is_replaced_under_gradients(peer(Fault::state_in_place), torch::kFloat32), says(size));
  EXPECT_THAT(parameters_survive_saving(peer(Fault::unregistered), torch::kFloat32), says(size));
  EXPECT_THAT(forms_agree(peer(Fault::uninitialised), torch::kFloat32, kLengths), says("relative error inf.* at .*nan instead of"));
  // This fault changes element 11 of the last row.
  EXPECT_THAT(rows_independent(peer(Fault::last_of_rows), torch::kFloat32), says("step of 2 rows.* at \\[[01], 11\\]"));
  EXPECT_THAT(state_bytes_are_real(peer(Fault::state_grows), torch::kFloat32), says("takes [0-9]+ bytes.* [0-9]+"));
  EXPECT_THAT(error_does_not_grow(peer(Fault::half_state), torch::kBFloat16, 2500), says("relative error [0-9.e-]+ in the last"));
}

TEST_F(Laws, SayForWhichOptionsAndHowMuch) {
  Subject subject = peer(Fault::step_differs);
  subject.options = "heads = 3\nbias = true";
  const testing::AssertionResult result = obeys(forms_agree, subject, torch::kFloat32, kLengths);
  EXPECT_FALSE(result);
  EXPECT_THAT(result.message(), testing::AllOf(testing::HasSubstr("relative error"), testing::HasSubstr(" instead of "),
                                               testing::HasSubstr("of peer: --d-model 12 --set heads=3 --set bias=true; Float on cpu")));
  EXPECT_THAT(rows_independent(peer(Fault::rows_beyond_32), torch::kFloat32),
              testing::AllOf(testing::HasSubstr("step of 33 rows"), testing::HasSubstr("relative error")));
  EXPECT_THAT(state_is_a_value(peer(Fault::memory_outside), torch::kFloat32), testing::HasSubstr("relative error"));
}

TEST_F(Laws, StateMustBeAll) {
  EXPECT_NE(state_is_a_value(peer(Fault::memory_outside), torch::kFloat32), "");
  EXPECT_NE(state_is_a_value(peer(Fault::slot_state_mixed), torch::kFloat32), "");
}

TEST_F(Laws, StateBytesMustBeReal) { EXPECT_NE(state_bytes_are_real(peer(Fault::state_grows), torch::kFloat32), ""); }

TEST_F(Laws, StateFormulaMustBeExact) {
  EXPECT_EQ(state_formula_is_exact(peer(Fault::wrong_formula), torch::kFloat32),
            "after 1 tokens 4 · (d_model + 1) is 52 bytes, state_bytes says 48");
}

TEST_F(Laws, SizesMustBeKnownWithoutMemory) {
  EXPECT_EQ(sizes_are_known_without_memory(peer(Fault::takes_memory), torch::kFloat32),
            "parameter weight, Float [12, 12], takes memory under ShapesOnly");
}

TEST_F(Laws, EveryParameterMustBeSaved) { EXPECT_NE(parameters_survive_saving(peer(Fault::unregistered), torch::kFloat32), ""); }

TEST_F(Laws, RoundedSumsGrowWorse) { EXPECT_NE(error_does_not_grow(peer(Fault::half_state), torch::kBFloat16, 2500), ""); }

TEST_F(Laws, FreshMemoryIsNan) {
  EXPECT_TRUE(torch::empty({100}).isnan().all().item<bool>());
  EXPECT_TRUE(torch::empty({33}, torch::kBFloat16).isnan().all().item<bool>());
}

}  // namespace laws_test
}  // namespace based::laws
