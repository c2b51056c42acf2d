#include "based/kernels/common/launchers.h"

#include <typeinfo>

#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/attention/paged_attention.h"
#include "based/kernels/attention/rotary.h"
#include "based/kernels/common/device_code.h"
#include "based/kernels/conv/diagonal_filter.h"
#include "based/kernels/conv/gated_long_conv.h"
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/delta_rule/delta_rule.h"
#include "based/kernels/delta_rule/delta_rule_step.h"
#include "based/kernels/linear/linear.h"
#include "based/kernels/linear/linear_step.h"
#include "based/kernels/linear_attention/linear_attention.h"
#include "based/kernels/norm/layer_norm.h"
#include "based/kernels/norm/rms_norm.h"
#include "based/kernels/pointwise/activation.h"
#include "based/kernels/pointwise/swiglu.h"
#include "based/kernels/sampling/adjusted_logits.h"
#include "based/kernels/sampling/sampling.h"
#include "based/kernels/scan/scan.h"
#include "based/kernels/scan/scan_step.h"
#include "based/kernels/step/step_program.h"
#include "based/kernels/taylor/deferred.h"
#include "based/kernels/taylor/taylor.h"
#include "based/kernels/training/adamw.h"
#include "based/kernels/training/cross_entropy.h"
#include "based/kernels/training/dropout.h"
#include "based/kernels/training/embedding.h"
#include "based/kernels/training/gradient_norm.h"
#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace launchers_test {

template <class... Tables>
struct List {};

using OnCpuAndGpu =
    List<ActivationLaunchers, AdjustedLogitsLaunchers, CausalAttentionLaunchers, CrossEntropyLaunchers, DropoutLaunchers,
         GatedDeltaRuleLaunchers, LinearLaunchers, LinearAttentionStepLaunchers, PagedAttentionLaunchers, RmsNormLaunchers, RotaryLaunchers,
         SampleLaunchers, SelectiveScanLaunchers, ShortConvLaunchers, SwigluLaunchers, TaylorAttentionLaunchers>;
using OnGpuAlone = List<AdamwLaunchers, DeviceLaunchers, DiagonalFilterLaunchers, EmbeddingLaunchers, GatedDeltaRuleOfLayerLaunchers,
                        GatedLongConvLaunchers, GradientNormLaunchers, LayerNormLaunchers, LinearAttentionPairsLaunchers,
                        LinearStepLaunchers, SelectiveScanOfLayerLaunchers, StepProgramLaunchers, TaylorDeferredLaunchers>;

template <class Table>
void expect_table(Device device, bool exists) {
  EXPECT_EQ(launchers<Table>(device) != nullptr, exists) << typeid(Table).name();
}
template <class... Tables>
void expect_tables(Device device, bool exist, List<Tables...>) {
  (expect_table<Tables>(device, exist), ...);
}

TEST(Launchers, AreRegisteredForTheCpuByTheFamiliesThatHaveKernelsForIt) {
  expect_tables(Device::cpu, true, OnCpuAndGpu());
  expect_tables(Device::cpu, false, OnGpuAlone());
}

// This program contains no CUDA kernels, even where the library is built with them.
TEST(Launchers, AreNullForADeviceWithoutKernels) {
  expect_tables(Device::cuda, false, OnCpuAndGpu());
  expect_tables(Device::cuda, false, OnGpuAlone());
}

TEST(Launchers, OfTheCpuGiveTheBitsOfTheFunctionsThatTheyCall) {
  const int64_t rows = 3, width = 50;
  Buffer h(DType::f32, random_reals(rows * 2 * width, 1, DType::f32)), by_table(DType::f32, rows * width), by_name = by_table;
  Swiglu p;
  p.h = h.data(), p.rows = rows, p.width = width;
  p.y = by_table.data();
  ASSERT_TRUE(launchers<SwigluLaunchers>(Device::cpu)->forward(p, {}).ok());
  p.y = by_name.data();
  ASSERT_TRUE(cpu::swiglu_forward(p).ok());
  EXPECT_TRUE(by_table.same_bits(by_name));
}

// A launcher with scratch memory, and its size.
TEST(Launchers, OfTheCpuPassScratchMemoryOn) {
  const int64_t rows = 40, width = 33;
  const auto random = [](int64_t count, unsigned seed) { return Buffer(DType::f32, random_reals(count, seed, DType::f32)); };
  Buffer x = random(rows * width, 1), weight = random(width, 2), grad_y = random(rows * width, 3),
         inverse_rms(DType::f32, Reals(rows, 0.5));
  const RmsNormLaunchers& table = *launchers<RmsNormLaunchers>(Device::cpu);
  const auto backward = [&](Buffer& grad_x, Buffer& grad_weight) {
    RmsNormBackward b;
    b.forward.x = x.data(), b.forward.weight = weight.data(), b.forward.inverse_rms = inverse_rms.floats();
    b.forward.rows = rows, b.forward.width = width;
    b.grad_y = grad_y.data(), b.grad_x = grad_x.data(), b.grad_weight = grad_weight.floats();
    return b;
  };
  Buffer grad_x_by_table(DType::f32, rows * width), grad_weight_by_table(DType::f32, width);
  Buffer grad_x_by_name = grad_x_by_table, grad_weight_by_name = grad_weight_by_table;
  const RmsNormBackward through_table = backward(grad_x_by_table, grad_weight_by_table),
                        by_name = backward(grad_x_by_name, grad_weight_by_name);
  const int64_t bytes = cpu::rms_norm_backward_scratch(by_name);
  EXPECT_EQ(table.backward_scratch(through_table), bytes);
  std::vector<float> scratch(static_cast<size_t>(bytes + 3) / 4);
  ASSERT_TRUE(table.backward(through_table, scratch.data(), {}).ok());
  ASSERT_TRUE(cpu::rms_norm_backward(by_name, scratch.data()).ok());
  EXPECT_TRUE(grad_x_by_table.same_bits(grad_x_by_name));
  EXPECT_TRUE(grad_weight_by_table.same_bits(grad_weight_by_name));
}

// Refusals reach the caller.
TEST(Launchers, OfTheCpuReturnTheFunctionsStatus) {
  ShortConv p;
  p.taps = 0, p.channels = 1;
  const Status by_table = launchers<ShortConvLaunchers>(Device::cpu)->forward(p, {}), by_name = cpu::short_conv_forward(p);
  ASSERT_FALSE(by_name.ok());
  EXPECT_STREQ(by_table.what, by_name.what);
}

}  // namespace launchers_test
}  // namespace based::kernels
