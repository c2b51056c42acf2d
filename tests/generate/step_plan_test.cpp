#include "based/generate/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <set>

#include "based/core/error.h"
#include "based/kernels/taylor/taylor.h"
#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/projection.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/language_model.h"
#include "based/ops/linear/linear.h"
#include "based/ops/norm/rms_norm.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace step_plan_test {

using decode::StageForm;
using kernels::kH200;
using testing::HasSubstr;
using torch::Tensor;

struct NoOptions {
  template <class Visitor>
  void visit(Visitor&&) {}
};

struct Counts {
  int64_t operators = 0, launches = 0;
  int64_t whole_step = 0, fused = 0, early_reads = 0, deferred_state = 0, none = 0;  // operators
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << '{' << c.operators << ", " << c.launches << ", " << c.whole_step << ", " << c.fused << ", " << c.early_reads << ", "
             << c.deferred_state << ", " << c.none << '}';
}
Counts counts_of(const decode::Plan& plan) {
  Counts counts{static_cast<int64_t>(plan.units().size()), plan.launches()};
  for (const auto& line : plan.report()) {
    int64_t* const of_form[] = {&counts.none, &counts.early_reads, &counts.deferred_state, &counts.fused, &counts.whole_step};
    *of_form[static_cast<size_t>(line.form)] += line.units;
  }
  return counts;
}

struct Expected {
  const char* preset;
  int64_t slots;
  Counts counts;
};

// The plans of the paper's models on an H200. If these numbers change, speed changes: see `based inspect NAME --plan`.
TEST(StepPlan, OfThePapersModels) {
  const std::vector<Expected> all = {
      {"based-360m", 1, {203, 3, 201, 0, 0, 0, 2}},     {"based-360m", 16, {203, 123, 0, 188, 12, 0, 3}},
      {"based-360m", 128, {203, 124, 0, 185, 7, 6, 5}}, {"based-1.4b", 1, {270, 3, 268, 0, 0, 0, 2}},
      {"based-1.4b", 16, {270, 163, 0, 251, 16, 0, 3}}, {"based-1.4b", 128, {270, 164, 0, 248, 9, 8, 5}},
      {"attn-360m", 1, {196, 196, 0, 0, 97, 0, 99}},    {"attn-360m", 16, {196, 148, 0, 144, 1, 0, 51}},
      {"attn-360m", 128, {196, 149, 0, 141, 2, 0, 53}}, {"attn-1.4b", 1, {292, 292, 0, 0, 145, 0, 147}},
      {"attn-1.4b", 16, {292, 220, 0, 216, 1, 0, 75}},  {"attn-1.4b", 128, {328, 293, 0, 105, 38, 0, 185}},
      {"mamba-360m", 1, {326, 326, 0, 0, 277, 0, 49}},  {"mamba-360m", 128, {326, 190, 0, 272, 49, 0, 5}},
      {"gla-360m", 1, {340, 196, 0, 192, 73, 0, 75}},   {"gla-360m", 128, {340, 153, 0, 305, 6, 0, 29}},
  };
  for (const auto& [preset, slots, counts] : all) {
    const auto plan = plan_decode_step(find_preset(preset), kH200, {.slots = slots});
    EXPECT_EQ(counts_of(*plan), counts) << preset << ", " << slots << " slots\n" << plan->text();
  }
}

// Steps of many sequences in bf16 read copies of the sums and the last inputs of convolutions, which belong to the plan; in fp32 they read
// the state.
TEST(StepPlan, SumsAreCopiedInBf16) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat32}) {
    const auto plan = plan_decode_step(find_preset("based-360m"), kH200, {.slots = 128, .dtype = dtype});
    const bool bf16 = dtype == torch::kBFloat16;
    const int64_t copied = bf16 ? 128 * 16 * kernels::packed_features(16) * 64 * 2 : 0, inputs = 128 * 2048 * 2 * 2;
    int64_t sums = 0, convolutions = 0;
    for (const auto& pending : plan->pending()) {
      const bool replaces = pending->replaced_bytes() > 0;
      (replaces ? convolutions : sums) += 1;
      EXPECT_EQ(pending->replaced_bytes(), replaces ? 2 * inputs : 0);
      EXPECT_EQ(pending->rounded_bytes(), replaces ? 0 : copied);
      EXPECT_EQ(pending->bytes() == inputs, replaces);
      EXPECT_GT(pending->bytes(), replaces ? 0 : copied);
    }
    EXPECT_EQ(sums, 5);
    EXPECT_EQ(convolutions, bf16 ? 17 : 0);
  }
}

// A step of several tokens of one sequence fuses the layers that a step of several sequences fuses, without the convolutions, of which no
// layer reads several tokens. Steps of each number of tokens fuse the same, since they must round in the same places.
TEST(StepPlan, OfSeveralTokensOfOneSequence) {
  const std::vector<std::pair<const char*, Counts>> all = {{"based-360m", {205, 141, 0, 172, 28, 0, 5}},
                                                           {"based-1.4b", {272, 186, 0, 230, 37, 0, 5}}};
  for (const auto& [preset, counts] : all) {
    const auto eight = plan_decode_step(find_preset(preset), kH200, {.tokens = 8});
    const auto batch = plan_decode_step(find_preset(preset), kH200, {.slots = 16});
    EXPECT_EQ(counts_of(*eight), counts) << preset << "\n" << eight->text();
    std::vector<std::string> layers = batch->fused();
    for (std::string& one : layers)
      if (one == "based::linear based::short_conv_step") one = "based::linear";
    EXPECT_EQ(eight->fused(), layers) << preset;
  }
  for (const char* preset : {"based-360m", "based-1.4b"}) {
    const auto one_row = plan_decode_step(find_preset(preset), kH200, {.tokens = 1, .rows = StepRows::of_tokens});
    EXPECT_EQ(counts_of(*one_row).whole_step, counts_of(*plan_decode_step(find_preset(preset), kH200, {})).whole_step) << one_row->text();
  }
  EXPECT_THROW(plan_decode_step(find_preset("based-360m"), kH200, {.tokens = 9}), UsageError);
  EXPECT_THROW(plan_decode_step(find_preset("based-360m"), kH200, {.slots = 2, .tokens = 1}), UsageError);
}

// A kernel of a whole step reads several tokens as it reads one.
TEST(StepPlan, OneProgramReadsSeveralTokens) {
  for (const char* preset : {"based-360m", "based-1.4b"}) {
    const Counts one = counts_of(*plan_decode_step(find_preset(preset), kH200, {}));
    for (int64_t tokens = 1; tokens <= SequenceStep::kRows; ++tokens) {
      const auto plan = plan_decode_step(find_preset(preset), kH200, {.tokens = tokens, .rows = StepRows::of_tokens});
      EXPECT_EQ(counts_of(*plan).whole_step, one.whole_step) << plan->text();
      EXPECT_TRUE(plan->is_one_program()) << plan->text();
    }
  }
  for (const char* preset : {"attn-360m", "mamba-360m", "gla-360m"})
    EXPECT_FALSE(plan_decode_step(find_preset(preset), kH200, {.tokens = 2, .rows = StepRows::of_tokens})->is_one_program()) << preset;
  EXPECT_FALSE(plan_decode_step(find_preset("based-360m"), kH200, {.tokens = 2})->is_one_program());
  EXPECT_FALSE(plan_decode_step(find_preset("based-360m"), kH200, {.slots = 2})->is_one_program());
}

TEST(StepPlan, StepsOfEachNumberOfTokensFuseTheSame) {
  for (const char* preset : {"based-360m", "attn-360m", "mamba-360m", "gla-360m", "rwkv5-360m", "h3-360m"}) {
    const auto one = plan_decode_step(find_preset(preset), kH200, {.tokens = 1});
    for (const int64_t tokens : {2, 8})
      EXPECT_EQ(plan_decode_step(find_preset(preset), kH200, {.tokens = tokens})->fused(), one->fused()) << preset << ' ' << tokens;
  }
}

// Layers with int8 weights are instructions of one sequence's kernel, as full ones are. Steps of several sequences have full weights.
TEST(StepPlan, OfInt8Weights) {
  for (const char* preset : {"based-360m", "based-1.4b"}) {
    const StepPlanOptions int8{.weights = ops::WeightForm::int8};
    const auto plan = plan_decode_step(find_preset(preset), kH200, int8), full = plan_decode_step(find_preset(preset), kH200, {});
    EXPECT_EQ(counts_of(*plan), counts_of(*full)) << preset << "\n" << plan->text();
    EXPECT_THAT(plan->text(), Not(HasSubstr(" based::linear,"))) << "the last layer has int8 weights, too";
  }
  const auto many = plan_decode_step(find_preset("based-360m"), kH200, {.slots = 16, .weights = ops::WeightForm::int8});
  EXPECT_EQ(many->text(), plan_decode_step(find_preset("based-360m"), kH200, {.slots = 16})->text());
  const auto int4 = plan_decode_step(find_preset("based-360m"), kH200, {.weights = ops::WeightForm::int4});
  EXPECT_THAT(int4->text(), HasSubstr("no kernel for this type"));
}

TEST(StepPlan, NothingIsSilent) {
  for (const int64_t slots : {1, 128}) {
    for (const char* preset : {"based-360m", "attn-360m", "based-demo", "mamba-360m", "gla-360m"}) {
      for (const auto& line : plan_decode_step(find_preset(preset), kH200, {.slots = slots})->report()) {
        if (line.form != StageForm::none) continue;
        EXPECT_NE(line.why, "") << preset << ": " << line.op;
      }
    }
  }
}

// A kernel computes its own time steps and decays if nothing else reads these and if the rows fill a tile of the scan.
TEST(StepPlan, StepsThatMakeTheirOwnGates) {
  const auto joined = [](const char* preset, int64_t slots, const char* op, torch::Dtype dtype = torch::kBFloat16) {
    int64_t units = 0;
    for (const auto& line : plan_decode_step(find_preset(preset), kH200, {.slots = slots, .dtype = dtype})->report())
      if (line.op == op && line.form == StageForm::fused) units += line.units;
    return units;
  };
  EXPECT_EQ(joined("mamba-360m", 64, "based::selective_scan_step"), 46);
  EXPECT_EQ(joined("mamba-360m", 63, "based::selective_scan_step"), 0);
  EXPECT_EQ(joined("mamba-360m", 128, "based::selective_scan_step", torch::kFloat32), 0);
  for (const int64_t slots : {1, 7}) EXPECT_EQ(joined("gla-360m", slots, "based::rowwise_activation"), 24);
  EXPECT_EQ(joined("gla-360m", 128, "based::rowwise_activation", torch::kFloat32), 0);
}

// Norms that read each other's outputs belong to no layer. They do not become instructions of a whole step, whose blocks only synchronize
// after layers.
TEST(StepPlan, NormsWithoutAnMlpBetweenStayAsTheyAre) {
  ModelConfig config = find_preset("based-360m");
  config.mlp = "identity";
  for (const int64_t slots : {1, 16}) {
    const auto plan = plan_decode_step(config, kH200, {.slots = slots});
    int64_t kept = 0;
    for (const auto& line : plan->report())
      if (line.op == "based::rms_norm_add_" && line.form != StageForm::fused && line.form != StageForm::whole_step) kept += line.units;
    EXPECT_GE(kept, 27) << "one a layer\n" << plan->text();
  }
}

TEST(StepPlan, OfOtherDevicesAndTypes) {
  const auto on_cpu = plan_decode_step(find_preset("based-tiny"), {}, {.slots = 2, .dtype = torch::kFloat32});
  EXPECT_EQ(counts_of(*on_cpu).none, counts_of(*on_cpu).operators);
  EXPECT_THAT(on_cpu->text(), HasSubstr("a CPU runs operators one by one"));
  const auto older = plan_decode_step(find_preset("based-360m"), {108, false, 167936, 1024}, {.slots = 16});
  EXPECT_EQ(counts_of(*older).fused, 0);
  EXPECT_THAT(older->text(), HasSubstr("for Hopper"));
  const auto fp32 = plan_decode_step(find_preset("based-360m"), kH200, {.slots = 1, .dtype = torch::kFloat32});
  EXPECT_EQ(counts_of(*fp32).whole_step, 0);
  EXPECT_THAT(fp32->text(), HasSubstr("is not one sequence in bf16"));
  const auto invariant = plan_decode_step(find_preset("based-360m"), kH200, {.slots = 1, .invariant = true});
  EXPECT_EQ(counts_of(*invariant).deferred_state, 0) << "waiting tokens change the order of sums";
  EXPECT_THROW(plan_decode_step(find_preset("based-360m"), kH200, {.slots = 0}), UsageError);
}

ModelConfig model_of(const std::string& mixer, const std::string& options = "") {
  ModelConfig config = find_preset("based-tiny");
  config.d_model = 64;
  config.layers = {"conv", "layer"};
  config.mixers["layer"] = Config::parse_toml("type = \"" + mixer + "\"\n" + options, "test");
  for (const auto& field : find_mixer(mixer).help())
    if (field.name == "heads") config.mixers["layer"].set("heads", Config(int64_t{2}));
  return config;
}

// The error of a step that has no plan; empty if it has one.
std::string refusal_of(const ModelConfig& config, const StepPlanOptions& options = {}) {
  return message_of<Error>([&] { EXPECT_GT(plan_decode_step(config, kH200, options)->launches(), 0); });
}

std::string refusal_of(const char* mixer, const std::string& options = "") { return refusal_of(model_of(mixer, options)); }

constexpr const char* kAsksForValues =
    " asks for values on the host, so that it cannot be recorded and has no plan; a GPU runs its operators one by one, and `based generate "
    "--device cuda` does so without being told";

// Each mixer has a plan or an error that names the layer; LibTorch's own message never appears.
TEST(StepPlan, EveryMixerHasOneOrIsNamed) {
  const std::set<std::string> without{"bigbird", "scatterbrain", "hyena"};
  for (const MixerInfo& info : mixers()) {
    if (std::string(info.name) == "calls_unknown") continue;  // another test registers it
    for (const torch::Dtype dtype : {torch::kBFloat16, torch::kFloat32, torch::kFloat64})
      for (const StepPlanOptions& options : {StepPlanOptions{1, dtype}, StepPlanOptions{16, dtype}, StepPlanOptions{1, dtype, true}}) {
        const std::string refusal = refusal_of(model_of(info.name), options);
        if (without.contains(info.name))
          EXPECT_EQ(refusal, std::string("the step of layer 'layer' (mixer ") + info.name + ")" + kAsksForValues);
        else if (!info.recurrent)
          EXPECT_THAT(refusal, HasSubstr("layer 1 of the model, 'layer', has a mixer without a recurrent form"));
        else
          EXPECT_EQ(refusal, "") << info.name << " " << dtype;
      }
  }
}

TEST(StepPlan, EveryPresetHasOneOrIsNamed) {
  for (const Preset& preset : presets()) {
    const std::string expected = preset.name == "hyena-360m" ? std::string("the step of layer 'mixer' (mixer hyena)") + kAsksForValues : "";
    EXPECT_EQ(refusal_of(preset.config), expected) << preset.name;
  }
}

TEST(StepPlan, AModelThatLooksAtValuesIsNamed) {
  EXPECT_EQ(refusal_of("base_conv", "kernel_size = -1"), std::string("the step of layer 'layer' (mixer base_conv)") + kAsksForValues);
  EXPECT_EQ(refusal_of("base_conv", "kernel_size = -1\nimplicit = true"),
            std::string("the step of layer 'layer' (mixer base_conv)") + kAsksForValues);
  for (const FeatureMapInfo& map : feature_maps())
    EXPECT_EQ(refusal_of("linear_attention", std::string("feature_map = \"") + map.name + "\"\n"), "") << map.name;
}

// A mixer of another program may call an operator whose shape function LibTorch has in Python only.
class CallsUnknown final : public Mixer {
 public:
  CallsUnknown(const NoOptions&, const MixerContext&) {}
  Tensor forward(const Tensor& x, const Pass&) override { return x; }
  MixerState make_state(int64_t slots) const override { return MixerState({{"sum", torch::zeros({slots, 1}, parameter_device())}}); }
  Tensor prefill(const Tensor& x, MixerState&, const Pass&) override { return x; }
  Tensor step(const Tensor& x, MixerState&, const Pass&) override { return torch::logcumsumexp(x, 1); }
};
BASED_DEFINE_MIXER(calls_unknown, CallsUnknown, NoOptions, "of a test")

TEST(StepPlan, AnOperatorWithoutShapesIsNamed) {
  static const bool registered = (register_mixer(mixer_info_calls_unknown()), true);
  EXPECT_TRUE(registered);
  EXPECT_THAT(
      refusal_of("calls_unknown"),
      testing::MatchesRegex("the step of layer 'layer' \\(mixer calls_unknown\\) calls aten::_?logcumsumexp[.a-z]*, of which LibTorch "
                            "gives no shapes without memory, so that it has no plan here; a GPU may record it all the same: `based "
                            "generate --device cuda` says where it does not"));
}

// A mixer that the library does not have (delta rule: S ← S + β (v − S k) kᵀ, y = S q), made of ATen's operators and the library's
// projections.
class DeltaNet {
 public:
  DeltaNet(int64_t d_model, int64_t heads, torch::Device device) : heads_(heads), head_dim_(d_model / heads) {
    const auto make = [&](int64_t out) {
      auto made = std::make_shared<Projection>(d_model, out, false);
      if (!device.is_meta()) made->to(device);
      made->to(torch::kBFloat16);
      return made;
    };
    q_ = make(d_model), k_ = make(d_model), v_ = make(d_model), beta_ = make(8 * heads), out_ = make(d_model);
  }
  Tensor step(const Tensor& x, Tensor state, const Tensor& slots) const {  // state fp32 [slots, heads, head_dim, head_dim]
    const auto by_head = [&](const Tensor& t) { return t.view({-1, heads_, head_dim_}).to(torch::kFloat); };
    const Tensor q = by_head(q_->forward(x)), k = by_head(k_->forward(x)), v = by_head(v_->forward(x));
    const Tensor beta = torch::sigmoid(beta_->forward(x).narrow(1, 0, heads_).to(torch::kFloat)).unsqueeze(-1);
    const Tensor unit = k / k.norm(2, -1, true).clamp_min(1e-6);
    Tensor s = state.index_select(0, slots);
    const Tensor error = (v - torch::matmul(s, unit.unsqueeze(-1)).squeeze(-1)) * beta;
    s = s + error.unsqueeze(-1) * unit.unsqueeze(-2);
    state.index_copy_(0, slots, s);
    return out_->forward(torch::matmul(s, q.unsqueeze(-1)).squeeze(-1).reshape({x.size(0), -1}).to(x.scalar_type()));
  }
  Tensor make_state(int64_t slots, torch::Device device) const { return torch::zeros({slots, heads_, head_dim_, head_dim_}, device); }

 private:
  int64_t heads_, head_dim_;
  std::shared_ptr<Projection> q_, k_, v_, beta_, out_;
};

// Two such layers with a norm before each, as in a model.
class DeltaModel {
 public:
  DeltaModel(int64_t rows, torch::Device device)
      : first_(kWidth, 8, device), second_(kWidth, 8, device), device_(device), weight_(torch::ones({kWidth}, bf16())) {
    torch::manual_seed(3);
    slots_ = torch::arange(rows, torch::dtype(torch::kInt64).device(device));
    input_ = device.is_meta() ? torch::empty({rows, kWidth}, device) : torch::randn({rows, kWidth}, torch::kCPU).to(device);
    head_ = device.is_meta() ? torch::empty({256, kWidth}, bf16()) : (torch::randn({256, kWidth}) * 0.05).to(device, torch::kBFloat16);
    y_ = torch::zeros({rows, 256}, bf16());
    states_ = {first_.make_state(rows, device), second_.make_state(rows, device)};
  }
  void step() {
    Tensor stream = input_.clone();
    Tensor y = first_.step(ops::rms_norm(stream, weight_, 1e-5), states_[0], slots_);
    y = second_.step(ops::rms_norm_add_(stream, y, weight_, 1e-5), states_[1], slots_);
    y_.copy_(ops::linear(ops::rms_norm_add_(stream, y, weight_, 1e-5), head_));
  }
  Tensor steps(const std::function<void()>& step, int count) {
    for (Tensor& state : states_) state.zero_();
    std::vector<Tensor> all;
    for (int i = 0; i < count; ++i) step(), all.push_back(y_.to(torch::kFloat));
    return torch::stack(all);
  }

 private:
  static constexpr int64_t kWidth = 1024;
  torch::TensorOptions bf16() const { return torch::dtype(torch::kBFloat16).device(device_); }
  DeltaNet first_, second_;
  torch::Device device_;
  Tensor weight_, slots_, input_, head_, y_;
  std::vector<Tensor> states_;
};

TEST(StepPlan, AMixerThatIsNotInTheTreeIsFused) {
  const torch::InferenceMode inference;
  std::unique_ptr<DeltaModel> model;
  {
    const ShapesOnly no_memory;
    model = std::make_unique<DeltaModel>(16, torch::kMeta);
  }
  const auto plan = decode::plan_step([&] { model->step(); }, kH200, {});
  std::map<std::pair<std::string, StageForm>, int64_t> units;
  for (const auto& line : plan->report()) units[{line.op, line.form}] += line.units;
  const auto joined_norms = units[{"based::rms_norm_add_", StageForm::fused}], joined = units[{"based::linear", StageForm::fused}];
  EXPECT_EQ(joined_norms, 2) << plan->text();
  EXPECT_EQ(joined, 7) << "two that are before norms, four behind one, and the head\n" << plan->text();
  EXPECT_EQ((units[{"based::linear", StageForm::early_reads}]), 4) << plan->text();
  EXPECT_GT((units[{"aten::bmm", StageForm::none}] + units[{"aten::baddbmm", StageForm::none}]), 0) << plan->text();
}

TEST(StepPlan, AMixerThatIsNotInTheTreeGivesTheSameWhenFused) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::InferenceMode inference;
  for (const int64_t rows : {1, 16, 128}) {
    DeltaModel model(rows, torch::kCUDA);
    const Tensor expected = model.steps([&] { model.step(); }, 30);
    const auto recorded = decode::record_step(torch::kCUDA, [&] { model.step(); }, {});
    const Tensor found = model.steps([&] { recorded.replay->run(); }, 30);
    EXPECT_LT(((found - expected).norm() / expected.norm()).item<double>(), 2e-2) << rows;
    EXPECT_TRUE(torch::equal(found, model.steps([&] { recorded.replay->run(); }, 30))) << rows;
  }
}

}  // namespace step_plan_test
}  // namespace based
