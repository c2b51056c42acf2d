// A step of the short convolution. Its kernel reads the state early. In the step's program it is part of the instruction of the layer that
// computes its input and gate.
#include "based/ops/conv/short_conv.h"
#include "based/decode/state_kernel.h"
#include "based/decode/step_program.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::ShortConv;

class ConvKernel final : public StateKernel<ShortConv> {
 public:
  struct Parts {
    Span x, gate, weight, bias, state, slots, y;
  };
  ConvKernel(const ShortConv& arguments, Parts parts)
      : StateKernel(arguments, {{parts.weight, parts.bias, parts.slots}, {parts.state}}), parts_(std::move(parts)) {}

  bool join_instruction(Planned& before, const StepLimits& limits) const override {
    const ShortConv& p = arguments_;
    const kernels::Linear& layer = before.step.arguments.linear.linear;
    if (before.step.kind != kernels::StepKind::linear || layer.out != 2 * p.channels || p.rows != 1 || p.dtype != DType::bf16) return false;
    if (p.taps != 3 || !p.state_is_private || p.channels % 8 != 0) return false;
    const Span &output = before.outputs[0], &x = parts_.x, &gate = parts_.gate;
    const bool halves = x.storage == output.storage && x.begin == output.begin && gate.storage == output.storage && gate.begin == x.end;
    if (!halves || kernels::ceil_div(p.channels, limits.gpu.multiprocessors) > kernels::kStepBiased) return false;
    if (!kernels::aligned16(p.state) || !kernels::aligned16(p.weight) || !kernels::aligned16(p.bias)) return false;
    before.step.kind = kernels::StepKind::conv;
    before.step.arguments.linear.conv = p;
    append(before.early, {parts_.weight, parts_.bias, parts_.state});
    before.outputs.insert(before.outputs.begin(), parts_.y);
    before.states = {parts_.state};
    return true;
  }
  std::optional<Planned> instruction(const StepLimits&, std::string& why) const override {
    why = "does not follow the layer that computes its input and gate";
    return {};
  }

 private:
  Parts parts_;
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
  return std::make_unique<ConvKernel>(ops::short_conv_step_arguments(step, y),
                                      ConvKernel::Parts{call.span(x), call.span(gate), call.span(weight), call.span(bias), call.span(state),
                                                        call.span(slots), call.span(y)});
}

std::unique_ptr<StepKernel> lower_conv_tokens(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2), gate = call.tensor(3), state = call.tensor(5),
               slots = call.tensor(6), kept = call.tensor(7), y = call.result();
  if (!can_be_read(x, gate, {weight, bias, state, slots}, why)) return nullptr;
  const ops::OptionalTensor given_bias = ops::if_defined(bias), given_gate = ops::if_defined(gate);
  const ops::ShortConvTokens in{{x, weight, given_bias, given_gate, call.flag(4)}, state, slots, kept, call.integer(8)};
  using Kernel = TokensKernel<kernels::ShortConvTokens, &ShortConv::state_is_private>;
  return std::make_unique<Kernel>(ops::short_conv_tokens_arguments(in, y), x.size(0),
                                  EarlyReads{{call.span(weight), call.span(bias), call.span(slots)}, {call.span(state)}});
}

constexpr Lowering kShortConvLowerings[] = {{"based::short_conv_step", lower_short_conv}, {"based::short_conv_tokens", lower_conv_tokens}};

}  // namespace

std::span<const Lowering> lowerings_of_short_conv() { return kShortConvLowerings; }

}  // namespace based::decode
