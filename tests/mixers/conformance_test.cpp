// Checks every law for every registered mixer, with its defaults at several widths and with the option sets below, in fp32 and bf16, on the
// CPU and on a GPU if there is one. The laws about states apply to recurrent mixers only.
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <map>

#include "tests/mixers/subjects.h"

namespace based::laws {
namespace {

// Additional options: odd sizes, and values that change each option's default. Mixers without an entry are tested with their defaults.
const std::multimap<std::string, Options>& more_options() {
  const auto map = [](const std::string& name, const std::string& more = "") {
    return std::pair{"linear_attention", Options{256, "heads = 2\nhead_dim = 3\nfeature_map = \"" + name + "\"\n" + more}};
  };
  static const std::multimap<std::string, Options> all = {
      {"taylor_attention", {24, "heads = 3\nfeature_dim = 5\nhead_dim = 7\nbias = true"}},
      {"taylor_attention", {32, "heads = 2\nfeature_dim = 4\ndecay = true"}},
      {"taylor_attention", {33, "heads = 3\nfeature_dim = 4\ndecay = true\ndecay_form = \"code\"\ndecay_const = -3"}},
      {"taylor_attention",
       {32,
        "heads = 2\nfeature_dim = 4\ndecay = true\ndecay_form = \"code\"\ndecay_normalised = false\ndecay_projection = true\n"
        "decay_bias = true"}},
      {"taylor_attention", {10, "heads = 1\nfeature_dim = 1"}},
      {"taylor_attention", {64, "heads = 4\nfeature_dim = 8"}},
      {"linear_attention", {33, "heads = 3\nfeature_dim = 5\nhead_dim = 7\nbias = true"}},
      map("relu"),
      map("square"),
      map("squared_map"),
      map("taylor_exp", "feature_dim = 6"),
      map("taylor_exp", "feature_dim = 6\nfeature_options.packed = false"),
      map("cosformer", "feature_options.length = 100"),
      map("performer", "feature_options.features = 12"),
      map("projection", "feature_options = {width = 24, then = \"cosformer\", options = {length = 3000}}"),
      map("exp_dim", "feature_options.scale = 0.5"),
      map("exp_max_norm"),
      map("exp_sum_norm_halfspace", "feature_options.floor = 1e-3"),
      map("softmax_dim"),
      map("softmax_dim_halfspace"),
      // Weights may be negative: eps keeps the denominator away from 0, where rounding errors would dominate.
      map("identity", "eps = 1e6"),
      map("all_poly", "eps = 1e6\nfeature_options.features = 24"),
      {"sliding_window", {40, "heads = 4\nkv_heads = 2\nwindow = 7\nrotary_dim = 4\nqkv_bias = true\nout_bias = true"}},
      {"sliding_window", {33, "heads = 3\nwindow = 1\nrotary_dim = 0"}},
      {"sliding_window", {24, "heads = 2\nwindow = 65\nrotary_interleaved = true\nrotary_base = 500.0"}},
      {"attention", {33, "heads = 3\nkv_heads = 1\nrotary_dim = 6\nqkv_bias = true"}},
      {"attention", {16, "heads = 1\nrotary_dim = 0\nout_bias = true"}},
      {"gated_conv", {17, "expansion = 2\ntaps = 4\nuse_bias = false\nconv_bias = false"}},
      {"gated_conv", {8, "taps = 1"}},
      {"base_conv", {33, "kernel_size = 4\nuse_act = true"}},
      {"base_conv", {16, "kernel_size = -1\nl_max = 100"}},
      {"gla",
       {24, "heads = 3\nexpand_k = 1.0\nexpand_v = 2.0\nuse_short_conv = true\nconv_bias = true\nuse_gate = false\ngate_low_rank_dim = 3"}},
      // If q·k is near 0, a head's output is mostly rounding error, which the following norm scales up. A larger norm_eps prevents this for
      // random weights with such a head.
      {"gla", {256, "norm_eps = 0.1"}},
      {"gated_delta_net", {33, "heads = 11\nnorm_eps = 0.1"}},
      {"delta_net", {24, "heads = 3\nuse_short_conv = false\nuse_gate = true\nallow_neg_eigval = true"}},
      {"delta_net", {16, "heads = 1\nuse_beta = false\nconv_size = 2"}},
      {"gated_delta_net", {24, "heads = 3\nhead_dim = 5\nexpand_v = 1.0\nuse_gate = false\nnorm_eps = 0.1"}},
      {"mamba2", {24, "headdim = 8\nd_state = 5\nngroups = 2\nd_conv = 3\nbias = true\nnorm_before_gate = true"}},
      {"rwkv5", {24, "head_size = 8\nhead_size_divisor = 100.0"}},
      {"rwkv5", {33, "head_size = 11\nhead_size_divisor = 100.0"}},
      {"rwkv5_channel_mix", {10, "width = 7"}},
      {"base_conv", {17, "kernel_size = -1\nl_max = 64\nimplicit = true\nd_emb = 5\nuse_act = true"}},
      {"hyena", {24, "order = 3\nl_max = 70\nfilter_order = 8\nemb_dim = 5\nnum_inner_mlps = 1\nshort_filter_order = 4\nw = 3.0"}},
      {"hyena", {256, "l_max = 64\nfilter_order = 16"}},
      {"h3", {33, "d_state = 6\nhead_dim = 3"}},
      {"h3", {256, "d_state = 2"}},
      {"mamba", {24, "d_state = 5\nd_conv = 3\nexpand = 1\ndt_rank = 3"}},
      {"mamba", {17, "d_state = 1\nd_conv = 1\nconv_bias = false\nbias = true"}},
      {"bigbird", {33, "heads = 3\nblock_size = 2\nl_max = 100\nseed = 3"}},
      {"bigbird", {256, "block_size = 16\nl_max = 300"}},
      {"scatterbrain", {33, "heads = 3\nwindow = 1\nfeature_dim = 30\nqkv_bias = false"}},
      {"scatterbrain", {256, "window = 16\nout_bias = false"}},
      {"nystromformer", {33, "heads = 3\nlandmarks = 7\nl_max = 100"}},
      {"nystromformer", {16, "l_max = 64"}},
      {"nystromformer", {16, "landmarks = 1\ndamping = 0.0"}},
  };
  return all;
}

std::vector<Options> more_options(const std::string& name) {
  std::vector<Options> found;
  const auto [begin, end] = more_options().equal_range(name);
  for (auto it = begin; it != end; ++it) found.push_back(it->second);
  return found;
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const MixerInfo& info : mixers())
    for (Subject& subject : subjects_of(info, more_options(info.name))) all.push_back(std::move(subject));
  return all;
}

std::vector<Subject> subjects_that(bool recurrent) {
  std::vector<Subject> all = subjects();
  std::erase_if(all, [recurrent](const Subject& subject) { return subject.recurrent != recurrent; });
  return all;
}

Subject on(const Subject& subject, torch::DeviceType device) {
  Subject there = subject;
  there.device = device;
  return there;
}

void skip_without(torch::DeviceType device) {
  if (device == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
}

std::string suffix(torch::DeviceType device) { return device == torch::kCUDA ? "_cuda" : ""; }

// A long sequence takes seconds. A wide mixer shows the same faults in it as a narrow one. On the CPU the loops over a sequence are the
// same templates for fp32 and bf16, so both types are tried only with a mixer's default options, and with little more than the longest
// piece in which a mixer reads a sequence, H3's 1024 tokens.
std::vector<int64_t> with_a_long_one(std::vector<int64_t> lengths, const Subject& subject, torch::Dtype dtype) {
  const bool both_types = subject.device.is_cuda() || subject.options.empty();
  if (subject.d_model < 256 && (both_types || dtype == torch::kFloat32)) lengths.push_back(subject.device.is_cuda() ? 2048 : 1100);
  return lengths;
}

class EveryMixer : public testing::TestWithParam<std::tuple<Subject, torch::Dtype, torch::DeviceType>> {
 protected:
  void SetUp() override { skip_without(std::get<2>(GetParam())); }
  Subject subject() const { return on(std::get<0>(GetParam()), std::get<2>(GetParam())); }
  torch::Dtype dtype() const { return std::get<1>(GetParam()); }
  NanFill nan_fill_;
};

TEST_P(EveryMixer, IsCausal) { EXPECT_TRUE(obeys(causal, subject(), dtype())); }
TEST_P(EveryMixer, PackedRowsEqualSeparateOnes) { EXPECT_TRUE(obeys(packed_equals_separate, subject(), dtype())); }
TEST_P(EveryMixer, RowsDoNotPoisonTheirNeighbours) { EXPECT_TRUE(obeys(rows_do_not_poison, subject(), dtype())); }
TEST_P(EveryMixer, SizesAreKnownWithoutMemory) { EXPECT_TRUE(obeys(sizes_are_known_without_memory, subject(), dtype())); }
TEST_P(EveryMixer, StateFormulaIsExact) { EXPECT_TRUE(obeys(state_formula_is_exact, subject(), dtype())); }
TEST_P(EveryMixer, ParametersSurviveSaving) { EXPECT_TRUE(obeys(parameters_survive_saving, subject(), dtype())); }

// Tests of mixers without a state.
class EveryParallelMixer : public EveryMixer {};

TEST_P(EveryParallelMixer, ForwardIsExact) {
  EXPECT_TRUE(obeys(forward_is_exact, subject(), dtype(), with_a_long_one({1, 2, 63, 64, 65, 255, 256, 257}, subject(), dtype())));
}

// Tests of mixers with a state.
class EveryRecurrentMixer : public EveryMixer {};

TEST_P(EveryRecurrentMixer, ForwardPrefillAndStepAgree) {
  EXPECT_TRUE(obeys(forms_agree, subject(), dtype(), with_a_long_one({1, 2, 63, 64, 65, 255, 256, 257}, subject(), dtype())));
}
TEST_P(EveryRecurrentMixer, RowsAreIndependent) { EXPECT_TRUE(obeys(rows_independent, subject(), dtype())); }
TEST_P(EveryRecurrentMixer, StepsOfSeveralTokensEqualStepsOfOne) { EXPECT_TRUE(obeys(rounds_equal_steps, subject(), dtype())); }
TEST_P(EveryRecurrentMixer, GradientsFlowThroughTheState) { EXPECT_TRUE(obeys(gradients_flow_through_state, subject(), dtype())); }
TEST_P(EveryRecurrentMixer, StateIsReplacedWhereGradientsAreOn) {
  EXPECT_TRUE(obeys(state_is_replaced_under_gradients, subject(), dtype()));
}
TEST_P(EveryRecurrentMixer, StateIsAValue) { EXPECT_TRUE(obeys(state_is_a_value, subject(), dtype())); }
TEST_P(EveryRecurrentMixer, StateBytesAreReal) { EXPECT_TRUE(obeys(state_bytes_are_real, subject(), dtype())); }

std::string test_name(const testing::TestParamInfo<EveryMixer::ParamType>& info) {
  return std::get<0>(info.param).name + (std::get<1>(info.param) == torch::kFloat32 ? "_fp32" : "_bf16") + suffix(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMixer,
                         testing::Combine(testing::ValuesIn(subjects()), testing::Values(torch::kFloat32, torch::kBFloat16),
                                          testing::Values(torch::kCPU, torch::kCUDA)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Registry, EveryParallelMixer,
                         testing::Combine(testing::ValuesIn(subjects_that(/*recurrent=*/false)),
                                          testing::Values(torch::kFloat32, torch::kBFloat16), testing::Values(torch::kCPU, torch::kCUDA)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Registry, EveryRecurrentMixer,
                         testing::Combine(testing::ValuesIn(subjects_that(/*recurrent=*/true)),
                                          testing::Values(torch::kFloat32, torch::kBFloat16), testing::Values(torch::kCPU, torch::kCUDA)),
                         test_name);

class EveryMixersWidths : public testing::TestWithParam<MixerInfo> {};

// Fails for a mixer whose options options_at() cannot find at one of the widths: the laws would not be checked there.
TEST_P(EveryMixersWidths, AreTried) {
  for (const int64_t width : kWidths) {
    bool tried = false;
    for (const Subject& subject : subjects_of(GetParam(), more_options(GetParam().name))) tried = tried || subject.d_model == width;
    EXPECT_TRUE(tried) << GetParam().name << " is not tried at d_model " << width << ": add options for it to more_options()";
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMixersWidths, testing::ValuesIn(mixers()),
                         [](const testing::TestParamInfo<MixerInfo>& mixer) { return std::string(mixer.param.name); });

class EveryMixerInDouble : public testing::TestWithParam<Subject> {
 protected:
  NanFill nan_fill_;
};

TEST_P(EveryMixerInDouble, ObeysTheExactLaws) {
  EXPECT_TRUE(obeys(causal, GetParam(), torch::kFloat64));
  EXPECT_TRUE(obeys(packed_equals_separate, GetParam(), torch::kFloat64));
  EXPECT_TRUE(obeys(state_formula_is_exact, GetParam(), torch::kFloat64));
  if (!GetParam().recurrent) return;
  EXPECT_TRUE(obeys(forms_agree, GetParam(), torch::kFloat64, {1, 65, 257}));
  EXPECT_TRUE(obeys(gradients_flow_through_state, GetParam(), torch::kFloat64));
}

// The laws in fp32 and bf16 compare wide mixers with double.
std::vector<Subject> narrow_subjects() {
  std::vector<Subject> all = subjects();
  std::erase_if(all, [](const Subject& subject) { return subject.d_model >= 256; });
  return all;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMixerInDouble, testing::ValuesIn(narrow_subjects()),
                         [](const testing::TestParamInfo<Subject>& subject) { return subject.param.name; });

// A wrapper of a mixer that changes its states.
class WithState : public Mixer {
 public:
  explicit WithState(std::shared_ptr<Mixer> inner) : inner_(register_module("inner", std::move(inner))) {}
  Tensor forward(const Tensor& x, const Pass& pass) override { return inner_->forward(x, pass); }
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) override { return inner_->prefill(x, state, pass); }
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) override { return inner_->step(x, state, pass); }

 protected:
  std::shared_ptr<Mixer> inner_;
};

// Stores growing states in pages, which are assigned to slots in random order.
class InPages final : public WithState {
 public:
  using WithState::WithState;
  MixerState make_state(int64_t slots) const override {
    constexpr int64_t tokens = 32;
    const int64_t slot_pages = slots > 8 ? 8 : 2048 / tokens + 1;  // sequences are short in tests with many slots
    MixerState state = inner_->make_state(slots);
    const Tensor table = torch::randperm(slots * slot_pages, torch::kInt64).view({slots, slot_pages});
    state.use_pages({table.to(state.tensors()[0].value.device()), tokens}, slots * slot_pages);
    return state;
  }
};

std::vector<Subject> growing_subjects_in_pages() {
  std::vector<Subject> all;
  for (const Subject& subject : subjects_that(/*recurrent=*/true)) {
    if (!subject.make()->make_state(1).grows()) continue;
    Subject in_pages = subject;
    in_pages.make = [make = subject.make]() -> std::shared_ptr<Mixer> { return std::make_shared<InPages>(make()); };
    all.push_back(in_pages);
  }
  return all;
}

class EveryGrowingMixerInPages : public EveryMixer {};

TEST_P(EveryGrowingMixerInPages, ObeysTheLawsOfItsState) {
  EXPECT_TRUE(obeys(forms_agree, subject(), dtype(), with_a_long_one({1, 2, 31, 32, 33, 257}, subject(), dtype())));
  EXPECT_TRUE(obeys(rows_independent, subject(), dtype()));
  EXPECT_TRUE(obeys(rows_do_not_poison, subject(), dtype()));
  EXPECT_TRUE(obeys(gradients_flow_through_state, subject(), dtype()));
  EXPECT_TRUE(obeys(state_is_replaced_under_gradients, subject(), dtype()));
  EXPECT_TRUE(obeys(state_is_a_value, subject(), dtype()));
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryGrowingMixerInPages,
                         testing::Combine(testing::ValuesIn(growing_subjects_in_pages()),
                                          testing::Values(torch::kFloat32, torch::kBFloat16), testing::Values(torch::kCPU, torch::kCUDA)),
                         test_name);

// States stay in fp32, and the keys of windows and caches are rounded only once, so that the error in bf16 does not grow with the length.
// In 4096 tokens, an error that grows with the fourth root of the length exceeds the bound. A GPU, which has other kernels for long
// sequences, gets more.
class EveryMixerInBf16 : public testing::TestWithParam<std::tuple<Subject, torch::DeviceType>> {
 protected:
  void SetUp() override { skip_without(std::get<1>(GetParam())); }
};

TEST_P(EveryMixerInBf16, ErrorDoesNotGrowWithLength) {
  const Subject subject = on(std::get<0>(GetParam()), std::get<1>(GetParam()));
  EXPECT_TRUE(obeys(error_does_not_grow, subject, torch::kBFloat16, subject.device.is_cuda() ? 16384 : 4096));
}

std::vector<Subject> small_subjects() {
  const std::map<std::string, Options> small = {{"taylor_attention", {32, "heads = 2\nfeature_dim = 8"}},
                                                {"sliding_window", {32, "heads = 2\nwindow = 16"}},
                                                {"attention", {16, "heads = 1"}},
                                                {"hyena", {16, "l_max = 64\nfilter_order = 8"}},
                                                {"h3", {16, "d_state = 8"}},
                                                {"bigbird", {16, "block_size = 4\nl_max = 512"}},
                                                {"scatterbrain", {16, "window = 16"}}};
  std::vector<Subject> all;
  for (const MixerInfo& info : mixers()) {
    if (!info.recurrent) continue;
    const auto found = small.find(info.name);
    all.push_back(make_subject(info, info.name, found == small.end() ? Options{64, ""} : found->second));
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryMixerInBf16,
                         testing::Combine(testing::ValuesIn(small_subjects()), testing::Values(torch::kCPU, torch::kCUDA)),
                         [](const testing::TestParamInfo<EveryMixerInBf16::ParamType>& given) {
                           return std::get<0>(given.param).name + suffix(std::get<1>(given.param));
                         });

}  // namespace
}  // namespace based::laws
