// The types of the mixer interface: sequences, states, the registry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/core/error.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/projection.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/mixers/kit/step_history.h"

namespace based {
namespace interface_test {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::shared_ptr<Mixer> make(const std::string& name, const std::string& toml, int64_t d_model, int64_t layers = 1) {
  return find_mixer(name).make(Config::parse_toml(toml, "options.toml"), {d_model, /*layer=*/0, layers});
}

TEST(Sequences, CountPositionsFromEachRowsStart) {
  const Sequences rows = Sequences::packed({0, 2, 2, 5}, 5);
  EXPECT_EQ(rows.rows(), 3);
  EXPECT_EQ(rows.max_length(), 3);
  EXPECT_FALSE(rows.equal_length());
  EXPECT_TRUE(rows.positions().equal(torch::tensor({0, 1, 0, 1, 2}, torch::kInt64)));
  EXPECT_TRUE(rows.positions(torch::tensor({10, 20, 30}, torch::kInt64)).equal(torch::tensor({10, 11, 30, 31, 32}, torch::kInt64)));
  EXPECT_TRUE(Sequences::equal(2, 3).equal_length());
  EXPECT_EQ(Sequences::equal(2, 3).tokens(), 6);
  EXPECT_EQ(Sequences::equal(0, 3).positions().numel(), 0);
}

TEST(Sequences, RefuseWrongOffsets) {
  EXPECT_THAT(error_of([] { Sequences::packed({}, 0); }), HasSubstr("rows + 1 entries"));
  EXPECT_THAT(error_of([] { Sequences::packed({1, 2}, 2); }), HasSubstr("must start at 0, got 1"));
  EXPECT_THAT(error_of([] { Sequences::packed({0, 3, 2}, 2); }), HasSubstr("entry 2 is 2 after 3"));
  EXPECT_THAT(error_of([] { Sequences::packed({0, 3}, 4); }), HasSubstr("must end at the number of tokens, 4, got 3"));
  EXPECT_THAT(error_of([] { Sequences::equal(-1, 4); }), HasSubstr("must not be negative"));
}

Tensor numbers(const std::vector<int64_t>& values) { return torch::tensor(values, torch::kInt64); }

TEST(Pass, CountsPositionsFromWhatTheSlotsHaveSeen) {
  const Sequences rows = Sequences::packed({0, 2, 2, 5}, 5);
  EXPECT_TRUE(Pass(rows).positions().equal(numbers({0, 1, 0, 1, 2})));
  const Pass from_state(rows, numbers({4, 0, 2}), numbers({10, 20, 30}));
  EXPECT_TRUE(from_state.positions().equal(numbers({10, 11, 30, 31, 32})));
  EXPECT_EQ(from_state.longest(), 33);
  EXPECT_EQ(from_state.slots_on_host(), (std::vector<int64_t>{4, 0, 2}));
  const Pass step = Pass::step(numbers({1, 0}), numbers({7, 0}));
  EXPECT_TRUE(step.positions().equal(numbers({7, 0})));
  EXPECT_EQ(step.longest(), 8);
}

// A state with two slots whose steps are numbers, and the rows that StepHistory returns, for each kind of storage.
struct Steps {
  MixerState state;
  // Appends rows to slots 1 and 0, which already have `seen` steps. The new steps are the numbers from `first` on.
  std::pair<Tensor, Tensor> extend(const Tensor& seen, int64_t first, const std::vector<int64_t>& starts) {
    const Pass pass(Sequences::packed(starts, starts.back()), numbers({1, 0}), seen);
    StepHistory history(state, pass, "step");
    const Tensor all = history.extend("step", torch::arange(first, first + starts.back()).to(torch::kFloat).unsqueeze(1));
    return {all.flatten().to(torch::kInt64), history.joined_cu_seqlens()};
  }
};

TEST(StepHistory, GivesEarlierAndNewStepsOfARing) {
  Steps ring{MixerState({{"step", torch::zeros({2, 3, 1})}})};
  auto [all, starts] = ring.extend(numbers({0, 0}), 0, {0, 4, 5});
  EXPECT_TRUE(all.equal(numbers({0, 1, 2, 3, 4}))) << all;
  std::tie(all, starts) = ring.extend(numbers({4, 1}), 10, {0, 1, 3});  // a token attends to its own step and the two before
  EXPECT_TRUE(all.equal(numbers({2, 3, 10, 4, 11, 12}))) << all;
  EXPECT_TRUE(starts.equal(numbers({0, 3, 6})));
  EXPECT_TRUE(ring.state["step"].flatten().to(torch::kInt64).equal(numbers({4, 11, 12, 3, 10, 2}))) << ring.state["step"];
}

TEST(StepHistory, GivesAllStepsOfGrowingAndPagedTensors) {
  Steps growing{MixerState({{"step", torch::zeros({2, 0, 1}), true}})}, paged = growing;
  paged.state.use_pages({numbers({3, 1, 2, 0}).view({2, 2}), 2}, 4);
  for (Steps* steps : {&growing, &paged}) {
    auto [all, starts] = steps->extend(numbers({0, 0}), 0, {0, 2, 3});
    std::tie(all, starts) = steps->extend(numbers({2, 1}), 10, {0, 1, 3});
    EXPECT_TRUE(all.equal(numbers({0, 1, 10, 2, 11, 12}))) << all;
    EXPECT_TRUE(steps->state.extract(1)["step"].flatten().narrow(0, 0, 3).equal(torch::tensor({0.F, 1.F, 10.F})));
  }
  EXPECT_THAT(error_of([&] { paged.extend(numbers({4, 0}), 0, {0, 1, 1}); }), HasSubstr("slot 1 has no page for time step 4"));
}

// The backward pass needs the old state.
TEST(StepHistory, ReplacesAStateWhereGradientsAreOn) {
  for (const bool gradients : {true, false}) {
    const torch::AutoGradMode mode(gradients);
    Steps ring{MixerState({{"step", torch::zeros({2, 3, 1})}})};
    const Tensor before = ring.state["step"];
    ring.extend(numbers({0, 0}), 1, {0, 1, 2});
    EXPECT_EQ(before.sum().item<float>(), gradients ? 0 : 3);
    EXPECT_EQ(ring.state["step"].sum().item<float>(), 3);
  }
}

MixerState two_tensors(int64_t slots, int64_t time) {
  return MixerState({{"cache", torch::zeros({slots, time, 2}), true}, {"sum", torch::zeros({slots, 3})}});
}

TEST(MixerState, GrowsByDoublingAndKeepsWhatItHolds) {
  MixerState state = two_tensors(2, 3);
  state["cache"].fill_(1);
  state.grow(2);
  EXPECT_EQ(state["cache"].size(1), 3);
  state.grow(4);
  EXPECT_EQ(state["cache"].size(1), 6);
  EXPECT_EQ(state["cache"].sum().item<double>(), 12);
  state.grow(100);
  EXPECT_EQ(state["cache"].size(1), 100);
  EXPECT_EQ(state.bytes(), 4 * (2 * 100 * 2 + 2 * 3));
}

TEST(MixerState, RefusesWhatDoesNotFitAndStaysAsItWas) {
  MixerState state = two_tensors(2, 3);
  MixerState wrong({{"cache", torch::ones({1, 3, 2}), true}, {"sum", torch::ones({1, 4})}});
  EXPECT_THAT(error_of([&] { state.insert(wrong, 0); }), HasSubstr("'sum'"));
  EXPECT_EQ(state["cache"].sum().item<double>(), 0);
  EXPECT_THAT(error_of([&] { state.insert(two_tensors(2, 3), 0); }), HasSubstr("one slot"));
  EXPECT_THAT(error_of([&] { state.insert(MixerState(), 0); }), HasSubstr("0 tensors"));
  EXPECT_THAT(error_of([&] { state["kv"]; }), HasSubstr("no tensor 'kv'"));
}

TEST(MixerState, InPagesReadsAndWritesASlotsPages) {
  MixerState state = two_tensors(3, 0);
  state.use_pages({torch::tensor({3, 1, 0, -1, -1, -1}, torch::kInt64).view({3, 2}), 2}, 4);  // slots with two pages, one page and no page
  EXPECT_EQ(state["cache"].sizes(), (torch::IntArrayRef{4, 2, 2}));
  EXPECT_EQ(state.slots(), 3);
  MixerState one({{"cache", torch::arange(6).to(torch::kFloat).view({1, 3, 2}), true}, {"sum", torch::ones({1, 3})}});
  state.insert(one, 0);
  EXPECT_TRUE(state["cache"][3].flatten().equal(torch::arange(4).to(torch::kFloat)));
  EXPECT_TRUE(state["cache"][1].flatten().equal(torch::tensor({4.F, 5.F, 0.F, 0.F})));
  EXPECT_EQ(state["cache"][0].abs().sum().item<double>() + state["cache"][2].abs().sum().item<double>(), 0);
  EXPECT_FALSE(state.extract(0).paged());
  EXPECT_TRUE(state.extract(0)["cache"].narrow(1, 0, 3).equal(one["cache"]));
  EXPECT_THAT(error_of([&] { state.insert(one, 1); }), HasSubstr("does not fit the slot's pages, which hold 2 time steps"));
  EXPECT_EQ(state["sum"][1].sum().item<double>(), 0);
  state.zero(torch::tensor({0, 2}, torch::kInt64));
  EXPECT_EQ(state["cache"].abs().sum().item<double>(), 0);
}

TEST(Registry, NamesTheNearest) {
  EXPECT_STREQ(find_mixer("taylor_attention").name, "taylor_attention");
  EXPECT_THAT(error_of([] { find_mixer("tailor_attention"); }), HasSubstr("did you mean 'taylor_attention'?"));
  EXPECT_THAT(error_of([] { find_mixer("zzzzzzzzzz"); }), HasSubstr("unknown mixer 'zzzzzzzzzz'"));
}

TEST(Registry, TakesMixersOfAProgramsOwn) {
  const MixerInfo &first = find_mixer("taylor_attention"), &convolution = find_mixer("gated_conv");
  const size_t known = mixers().size();
  MixerInfo own = convolution;
  own.name = "own_conv2";
  register_mixer(own);
  ASSERT_EQ(mixers().size(), known + 1);
  EXPECT_STREQ(mixers().back().name, "own_conv2");
  EXPECT_EQ(make("own_conv2", "taps = 4", 32)->parameters().size(), make("gated_conv", "taps = 4", 32)->parameters().size());
  EXPECT_THAT(error_of([] { find_mixer("own_conv3"); }), HasSubstr("did you mean 'own_conv2'?"));
  EXPECT_EQ(&find_mixer("taylor_attention"), &first) << "references stay valid";

  const auto refused = [&](const char* name) {
    MixerInfo other = own;
    other.name = name;
    return error_of([&] { register_mixer(other); });
  };
  for (const char* name : {"own_conv2", "attention"})
    EXPECT_EQ(refused(name), "register_mixer: there is a mixer '" + std::string(name) + "' already; choose another name");
  for (const char* name : {"", "Attention", "2d", "_x", "my-mixer", "my mixer", "a.b", "müller"})
    EXPECT_THAT(refused(name), HasSubstr("a letter first, got '" + std::string(name) + "'"));
  EXPECT_THAT(refused(nullptr), HasSubstr("got ''"));
  own.name = "own_conv4", own.make = nullptr;
  EXPECT_THAT(error_of([&] { register_mixer(own); }), HasSubstr("'own_conv4' must have summary, make and help"));
  EXPECT_EQ(mixers().size(), known + 1);
}

TEST(State, PutsRowsInPlaceOrWhereGradientsAreOnInACopy) {
  MixerState state({{"sum", torch::zeros({3, 2})}});
  const Tensor before = state["sum"];
  {
    const torch::NoGradGuard no_grad;
    state.put("sum", numbers({2, 0}), torch::tensor({{1., 2.}, {3., 4.}}, torch::kFloat64));
  }
  EXPECT_TRUE(state["sum"].is_same(before));
  EXPECT_TRUE(before.equal(torch::tensor({{3.F, 4.F}, {0.F, 0.F}, {1.F, 2.F}})));
  const Tensor values = torch::full({1, 2}, 5.F).requires_grad_(true);
  state.put("sum", numbers({1}), values);
  EXPECT_EQ(before[1].abs().sum().item<double>(), 0);
  EXPECT_TRUE(state["sum"][1].equal(values[0]));
  EXPECT_TRUE(state["sum"].requires_grad());
  EXPECT_THAT(error_of([&] { state.put("sun", numbers({1}), values); }), HasSubstr("no tensor 'sun'"));
}

TEST(Registry, RefusesWrongOptions) {
  EXPECT_THAT(error_of([] { make("taylor_attention", "feture_dim = 8", 64); }), HasSubstr("feature_dim"));
  EXPECT_THAT(error_of([] { make("taylor_attention", "feature_dim = 65", 64); }), HasSubstr("feature_dim must be 1..64, got 65"));
  EXPECT_THAT(error_of([] { make("taylor_attention", "heads = 5", 64); }), HasSubstr("d_model 64 is not a multiple of heads 5"));
  const auto decay_error = [](const std::string& options) {
    return error_of([&] { make("taylor_attention", "decay = true\n" + options, 64); });
  };
  EXPECT_EQ(decay_error("decay_form = \"code\"\ndecay_const = -3"), "no error");
  EXPECT_THAT(decay_error("decay_form = \"paper's\""), HasSubstr("decay_form must be \"paper\" or \"code\", got \"paper's\""));
  EXPECT_THAT(decay_error("decay_const = -3"), HasSubstr("are options of decay_form = \"code\""));
  EXPECT_THAT(decay_error("decay_form = \"code\"\ndecay_const = 0"), HasSubstr("decay_const must be -60 to -1, got 0"));
  EXPECT_THAT(decay_error("decay_form = \"code\"\ndecay_bias = true"), HasSubstr("decay_bias = true needs decay_projection = true"));
  EXPECT_THAT(error_of([] { make("sliding_window", "window = 0", 64); }), HasSubstr("window must be 1.."));
  EXPECT_THAT(error_of([] { make("attention", "heads = 4\nkv_heads = 3", 64); }), HasSubstr("not a multiple of kv_heads 3"));
  EXPECT_THAT(error_of([] { make("attention", "heads = 4\nrotary_dim = 3", 64); }), HasSubstr("rotary_dim must be even"));
  EXPECT_THAT(error_of([] { make("attention", "heads = 3", 33); }), HasSubstr("rotary_dim must be even, got 11"));
  EXPECT_THAT(error_of([] { make("attention", "heads = 1", 512); }), HasSubstr("d_model / heads must be 1..256, got 512"));
  EXPECT_THAT(error_of([] { make("gated_conv", "expansion = 1", 33); }), HasSubstr("must be even"));
  EXPECT_THAT(error_of([] { make("base_conv", "kernel_size = -2", 32); }), HasSubstr("kernel_size must be 1..128"));
  EXPECT_THAT(error_of([] { make("base_conv", "kernel_size = -1\nimplicit = true\nd_emb = 4", 32); }), HasSubstr("d_emb must be odd"));
  EXPECT_THAT(error_of([] { make("base_conv", "kernel_size = -1\nimplicit = true\nl_max = 16777216\nd_emb = 129", 32); }),
              HasSubstr("l_max · max(d_emb, d_hidden) up to 67108864, got 16777216 · 129"));
}

TEST(StateBytes, AreThoseOfThePaper) {
  // 153 packed features of 16, 64 values and the denominator, 16 heads, fp32.
  EXPECT_EQ(state_bytes(*make("taylor_attention", "", 1024), 1000), 16 * 153 * (64 + 1) * 4);
  EXPECT_EQ(state_bytes(*make("sliding_window", "window = 64", 1024), 1000), 2 * 64 * 1024 * 4);
  EXPECT_EQ(state_bytes(*make("attention", "", 1024), 1000), 2 * 1000 * 1024 * 4);
  EXPECT_EQ(state_bytes(*make("gated_conv", "", 1024), 1000), 2048 * 2 * 4);
  const auto half = make("sliding_window", "window = 64\nkv_heads = 4", 1024);
  half->to(torch::kBFloat16);
  EXPECT_EQ(state_bytes(*half, 1000), 2 * 64 * 256 * 2);
}

// No machine has enough memory for these states.
TEST(StateBytes, TakeNoMemory) {
  const ShapesOnly no_memory;
  const int64_t tokens = int64_t{1} << 40;
  EXPECT_EQ(state_bytes(*make("attention", "", 1024), tokens), 2 * tokens * 1024 * 4);
  EXPECT_EQ(state_bytes(*make("sliding_window", "window = 1048576\nheads = 256", 65536), 1), (int64_t{1} << 36) * 8);
  EXPECT_EQ(state_bytes(*make("taylor_attention", "heads = 4096\nfeature_dim = 64\nhead_dim = 65536", 65536), 1),
            int64_t{4096} * 2145 * 65537 * 4);
  EXPECT_EQ(state_bytes(*make("base_conv", "kernel_size = -1\nl_max = 16777216", 65536), 1), (int64_t{1} << 40) * 4);
  EXPECT_THAT(error_of([] { state_bytes(*make("attention", "", 1024), INT64_MAX); }), HasSubstr("do not fit into 63 bits"));
}

// The mixer's parameters are real here. Its state would take 512 TiB, so that an allocation would throw.
TEST(StateBytes, AreComputedWithoutAllocatingTheState) {
  EXPECT_EQ(state_bytes(*make("attention", "", 64), int64_t{1} << 40), 2 * (int64_t{1} << 40) * 64 * 4);
}

TEST(InitialWeights, HaveTheStatedScale) {
  torch::manual_seed(3);
  const auto mixer = make("attention", "heads = 4\nqkv_bias = true", 128, /*layers=*/8);
  const auto parameters = mixer->named_parameters();
  EXPECT_NEAR(parameters["qkv_proj.weight"].std().item<double>(), 0.02, 0.001);
  EXPECT_NEAR(parameters["out_proj.weight"].std().item<double>(), 0.02 / 4, 0.0003);
  EXPECT_EQ(parameters["qkv_proj.bias"].abs().max().item<double>(), 0);
  const auto conv = make("gated_conv", "taps = 4", 128);
  const Tensor filter = conv->named_parameters()["conv.weight"];
  EXPECT_LE(filter.abs().max().item<double>(), 0.5);
  EXPECT_GT(filter.abs().max().item<double>(), 0.45);
}

// Weights are stored under the names of parameters: changing a name breaks every stored model.
TEST(ParameterNames, AreStable) {
  const auto names = [](const std::string& mixer, const std::string& options) {
    std::string joined;
    for (const auto& parameter : make(mixer, options, 32)->named_parameters()) joined += parameter.key() + " ";
    return joined;
  };
  EXPECT_EQ(names("taylor_attention", "decay = true"), "q_proj.weight k_proj.weight v_proj.weight o_proj.weight head_scale.weight ");
  EXPECT_EQ(names("taylor_attention", "decay = true\ndecay_form = \"code\""), "q_proj.weight k_proj.weight v_proj.weight o_proj.weight ");
  EXPECT_EQ(names("taylor_attention", "decay = true\ndecay_form = \"code\"\ndecay_projection = true\ndecay_bias = true"),
            "q_proj.weight k_proj.weight v_proj.weight o_proj.weight head_scale.weight head_scale.bias ");
  EXPECT_EQ(names("sliding_window", "qkv_bias = true"), "qkv_proj.weight qkv_proj.bias out_proj.weight ");
  EXPECT_EQ(names("attention", "out_bias = true"), "qkv_proj.weight out_proj.weight out_proj.bias ");
  EXPECT_EQ(names("gated_conv", ""), "in_proj.weight in_proj.bias conv.weight conv.bias out_proj.weight out_proj.bias ");
  EXPECT_EQ(names("base_conv", ""), "projection.weight projection.bias conv.weight conv.bias ");
  EXPECT_EQ(names("base_conv", "kernel_size = -1"), "projection.weight projection.bias filter.taps ");
  EXPECT_EQ(names("base_conv", "kernel_size = -1\nimplicit = true"),
            "projection.weight projection.bias filter.hidden.weight filter.hidden.bias filter.out.weight filter.out.bias ");
}

}  // namespace interface_test
}  // namespace based
