// A step of the short convolution. Its kernel reads the state early. It may be part of the layer that computes its input and gate: of its
// launch (join_norms.h), or of its instruction in the step's program.
#include "based/ops/conv/short_conv.h"

#include <c10/core/DeviceGuard.h>

#include "based/decode/pending.h"
#include "based/decode/state_kernel.h"
#include "based/decode/step_program.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/framework/on_device.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::ShortConv;

// Makes the layer that computes the convolution's input and gate an instruction that also convolves. Returns whether it did. `rows`: of the
// step, of which a sequence has one for each of its tokens.
bool join_layer(Planned& before, const kernels::ShortConvTokens& tokens, int64_t rows, const ConvSpans& spans, const StepLimits& limits) {
  const ShortConv& p = tokens.step;
  const kernels::Linear& layer = before.step.arguments.linear.linear;
  if (before.step.kind != kernels::StepKind::linear || layer.out != 2 * p.channels || rows != limits.tokens || tokens.padding != 0)
    return false;
  if (p.dtype != DType::bf16 || p.taps != 3 || !p.state_is_private || p.channels % 8 != 0) return false;
  if (rows > 1 && (p.x_stride != layer.out || p.gate_stride != layer.out)) return false;
  if (!spans.are_halves_of(before.outputs[0], 2 * p.channels) ||
      kernels::ceil_div(p.channels, limits.gpu.multiprocessors) > kernels::kStepBiased)
    return false;
  if (!kernels::aligned16(p.state) || !kernels::aligned16(p.weight) || !kernels::aligned16(p.bias)) return false;
  before.step.kind = kernels::StepKind::conv;
  before.step.arguments.linear.conv = tokens;
  before.step.out_stride = static_cast<int32_t>(p.channels);
  append(before.early, {spans.weight, spans.bias, spans.state});
  before.outputs.insert(before.outputs.begin(), spans.y);
  before.states = {spans.state};
  return true;
}
constexpr const char* kNoLayer = "does not follow the layer that computes its input and gate";

// The last inputs of the slots in bf16, which steps use instead of the state (ShortConv::recent).
class RecentInputs final : public PendingTokens {
 public:
  explicit RecentInputs(const Tensor& state)
      : state_(state), inputs_(at::full({state.size(0), state.size(1), 2}, kNone, state.options().dtype(at::kShort))) {}
  void flush(const Tensor& slots) override {
    const c10::DeviceGuard guard(state_.device());
    const Tensor slot = slots.contiguous();
    ops::require_ok(launch(
        kernels::ShortConvFlush{state_.mutable_data_ptr<float>(), data(), slot.const_data_ptr<int64_t>(), slot.size(0), state_.size(1)},
        ops::queue_of(state_)));
  }
  void forget(const Tensor& slots) override { inputs_.index_fill_(0, slots, kNone); }
  int64_t bytes() const override { return static_cast<int64_t>(inputs_.nbytes()); }
  int64_t rounded_bytes() const override { return 0; }
  int64_t replaced_bytes() const override { return static_cast<int64_t>(state_.nbytes()); }
  uint32_t* data() const { return static_cast<uint32_t*>(inputs_.mutable_data_ptr()); }

 private:
  static constexpr auto kNone = static_cast<int16_t>(kernels::kNoRecentInput);
  Tensor state_, inputs_;  // the state is kept, since it outlives the step
};

class ConvKernel final : public StateKernel<ShortConv> {
 public:
  ConvKernel(const ShortConv& arguments, const ConvSpans& spans, const Tensor& state)
      : StateKernel(arguments, {{spans.weight, spans.bias, spans.slots}, {spans.state}}), spans_(spans), state_(state) {}

  // Only for many sequences, where the bytes of the states take much of the time (docs/lab/linear.md).
  std::unique_ptr<StepKernel> deferred(const Gpu& gpu, const Effects&, size_t) const override {
    constexpr int64_t kFewRows = 64;
    if (!gpu.runs_hopper_code || arguments_.rows < kFewRows || !arguments_.state_is_private || !kernels::short_conv_has_recent(arguments_))
      return nullptr;
    auto kernel = std::make_unique<ConvKernel>(*this);
    kernel->recent_ = std::make_shared<RecentInputs>(state_);
    kernel->arguments_.recent = kernel->recent_->data();
    return kernel;
  }
  std::shared_ptr<PendingTokens> pending() const override { return recent_; }

  std::optional<ConvParts> convolution() const override { return ConvParts{arguments_, spans_}; }

  bool join_instruction(Planned& before, const StepLimits& limits) const override {
    return join_layer(before, {arguments_}, rows(), spans_, limits);
  }
  std::optional<Planned> instruction(const StepLimits&, std::string& why) const override {
    why = kNoLayer;
    return {};
  }

 private:
  ConvSpans spans_;
  Tensor state_;
  std::shared_ptr<RecentInputs> recent_;
};

class ConvTokensKernel final : public TokensKernel<kernels::ShortConvTokens, &ShortConv::state_is_private> {
 public:
  ConvTokensKernel(const kernels::ShortConvTokens& arguments, int64_t rows, const ConvSpans& spans)
      : TokensKernel(arguments, rows, {{spans.weight, spans.bias, spans.slots}, {spans.state}}), spans_(spans) {}

  bool join_instruction(Planned& before, const StepLimits& limits) const override {
    return join_layer(before, arguments_, rows(), spans_, limits);
  }
  std::optional<Planned> instruction(const StepLimits&, std::string& why) const override {
    why = kNoLayer;
    return {};
  }

 private:
  ConvSpans spans_;
};

// Whether the kernels read these tensors; else why not. `whole`: tensors that must be contiguous, where they are defined.
bool can_be_read(const Tensor& x, const Tensor& gate, std::initializer_list<Tensor> whole, std::string& why) {
  why = "no kernel for this type";
  if (!ops::has_kernel(x)) return false;
  why = "elements of a row are not adjacent";
  for (const Tensor& tensor : whole)
    if (tensor.defined() && !tensor.is_contiguous()) return false;
  return x.stride(1) == 1 && (!gate.defined() || gate.stride(1) == 1);
}

std::unique_ptr<StepKernel> lower_short_conv(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2), gate = call.tensor(3), state = call.tensor(5),
               slots = call.tensor(6), y = call.result();
  if (!can_be_read(x, gate, {weight, bias, state, slots}, why)) return nullptr;
  const ops::ShortConvStep step{{x, weight, ops::if_defined(bias), ops::if_defined(gate), call.flag(4)}, state, slots};
  return std::make_unique<ConvKernel>(
      ops::short_conv_step_arguments(step, y),
      ConvSpans{call.span(x), call.span(gate), call.span(weight), call.span(bias), call.span(state), call.span(slots), call.span(y)},
      state);
}

std::unique_ptr<StepKernel> lower_conv_tokens(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2), gate = call.tensor(3), state = call.tensor(5),
               slots = call.tensor(6), kept = call.tensor(7), y = call.result();
  if (!can_be_read(x, gate, {weight, bias, state, slots}, why)) return nullptr;
  const ops::OptionalTensor given_bias = ops::if_defined(bias), given_gate = ops::if_defined(gate);
  const ops::ShortConvTokens in{{x, weight, given_bias, given_gate, call.flag(4)}, state, slots, kept, call.integer(8)};
  return std::make_unique<ConvTokensKernel>(
      ops::short_conv_tokens_arguments(in, y), x.size(0),
      ConvSpans{call.span(x), call.span(gate), call.span(weight), call.span(bias), call.span(state), call.span(slots), call.span(y)});
}

constexpr Lowering kShortConvLowerings[] = {{"based::short_conv_step", lower_short_conv}, {"based::short_conv_tokens", lower_conv_tokens}};

}  // namespace

std::span<const Lowering> lowerings_of_short_conv() { return kShortConvLowerings; }

}  // namespace based::decode
