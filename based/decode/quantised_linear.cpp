// Linear layers with int8 weights. Their kernel reads constant weights early; the layer of one row is an instruction of the step's program.
#include "based/ops/linear/quantised_linear.h"
#include "based/decode/state_kernel.h"
#include "based/decode/step_program.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/linear/linear.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::StepKind;

struct QuantisedParts {
  Span x, values, scales, bias, y;
};

class QuantisedKernel final : public ArgumentsKernel<kernels::QuantisedLinear> {
 public:
  QuantisedKernel(const kernels::QuantisedLinear& arguments, const QuantisedParts& parts)
      : ArgumentsKernel(arguments, arguments.rows), parts_(parts) {}

  bool read_early(const Effects& effects, size_t) override {
    arguments_.weight_is_constant =
        effects.is_constant(parts_.values) && effects.is_constant(parts_.scales) && effects.is_constant(parts_.bias);
    return arguments_.weight_is_constant;
  }

  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    const kernels::QuantisedLinear& p = arguments_;
    const int64_t outputs = p.gated ? p.out / 2 : p.out;
    why = "is not one token in bf16 of constant weights";
    if (p.rows != 1 || limits.tokens != 1 || p.dtype != DType::bf16 || !p.weight_is_constant) return {};
    why = "its rows cannot be divided among a block's threads";
    const int64_t warps = limits.threads / 32, groups = p.in / (32 * warps), share = kernels::ceil_div(outputs, limits.gpu.multiprocessors);
    if (p.in % (32 * warps) != 0 || (groups != 2 && groups != 4 && groups != 8)) return {};
    if (p.out % 8 != 0 || p.out > 1 << 20 || (share > kernels::kStepBiased && (p.gated || p.bias != nullptr))) return {};
    for (const void* operand : {p.x, p.weight, p.scale, p.bias})
      if (!kernels::aligned16(operand)) return {};
    Planned to;
    to.step.kind = p.gated ? StepKind::swiglu : StepKind::linear;
    kernels::Linear layer;
    layer.x = p.x, layer.weight = p.weight, layer.bias = p.bias, layer.y = p.y;
    layer.rows = 1, layer.in = layer.x_stride = layer.weight_stride = p.in, layer.out = p.out, layer.y_stride = outputs;
    layer.dtype = layer.y_dtype = DType::bf16, layer.weight_is_constant = true;
    to.step.arguments.linear = {layer, {}, static_cast<const float*>(p.scale)};
    to.step.groups = static_cast<int32_t>(groups);
    while (2 << to.step.stage_shift <= kernels::step_stage_rows(limits.threads, p.in)) ++to.step.stage_shift;
    to.early = {parts_.bias, parts_.values, parts_.scales};
    to.reads = {parts_.x};
    to.outputs = {parts_.y};
    return to;
  }

 private:
  QuantisedParts parts_;
};

std::unique_ptr<StepKernel> lower_quantised_linear(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), values = call.tensor(1), scales = call.tensor(2), bias = call.tensor(3), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(x) || values.scalar_type() != at::kChar) return nullptr;
  why = "a library computes this product faster";
  if (x.size(0) > ops::kBatchInvariantRows) return nullptr;
  why = "elements of a row are not adjacent";
  if (x.stride(1) != 1 || (bias.defined() && !bias.is_contiguous())) return nullptr;
  return std::make_unique<QuantisedKernel>(
      ops::quantised_linear_arguments({x, values, scales, ops::if_defined(bias), call.flag(4)}, y),
      QuantisedParts{call.span(x), call.span(values), call.span(scales), call.span(bias), call.span(y)});
}

constexpr Lowering kQuantisedLinearLowerings[] = {{"based::quantised_linear", lower_quantised_linear}};

}  // namespace

std::span<const Lowering> lowerings_of_quantised_linear() { return kQuantisedLinearLowerings; }

}  // namespace based::decode
