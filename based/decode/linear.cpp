// Linear layers. Their kernels read constant weights early; the layer of one row is an instruction of the step's program.
#include "based/ops/linear/linear.h"
#include "based/decode/step_program.h"
#include "based/kernels/linear/linear_step.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::Linear;
using kernels::StepKind;

class LinearKernel final : public StepKernel {
 public:
  // A narrow x is kept as long as the plan, so that no later value of the step uses its memory: a later kernel may read it instead of y.
  LinearKernel(LinearParts parts, const Tensor& x) : parts_(std::move(parts)), kept_(x.size(1) <= kNarrow ? x : Tensor()) {}

  bool read_early(const Effects& effects, size_t) override {
    parts_.arguments.weight_is_constant = effects.is_constant(parts_.weight) && effects.is_constant(parts_.bias);
    return parts_.arguments.weight_is_constant;
  }
  Status launch(Queue queue) const override {
    return parts_.gated ? launch_swiglu(parts_.arguments, queue) : decode::launch(parts_.arguments, queue);
  }
  int64_t rows() const override { return parts_.arguments.rows; }
  const LinearParts* linear() const override { return &parts_; }

  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    const Linear& p = parts_.arguments;
    const int64_t outputs = parts_.gated ? p.out / 2 : p.out;
    why = "is not one sequence in bf16 of constant weights";
    if (p.rows != limits.tokens || p.dtype != DType::bf16 || p.y_dtype != DType::bf16 || p.accumulate || !p.weight_is_constant) return {};
    why = "its rows cannot be divided among a block's threads";
    const int64_t warps = limits.threads / 32, groups = p.in / (32 * warps), share = kernels::ceil_div(outputs, limits.gpu.multiprocessors);
    if (p.in % (32 * warps) != 0 || (groups != 1 && groups != 2 && groups != 4 && groups != 8)) return {};
    if (p.weight_stride != p.in || p.out > 1 << 20 || p.out % 2 != 0 || !kernels::aligned16(p.x) || !kernels::aligned16(p.weight))
      return {};
    if (limits.tokens > 1 && (p.y_stride != outputs || p.x_stride % 8 != 0 || outputs % 8 != 0)) return {};
    const int rows = kernels::step_stage_rows(limits.threads, 2 * p.in);
    if (rows < 2 || (p.bias != nullptr && (share > kernels::kStepBiased || p.out % 8 != 0 || !kernels::aligned16(p.bias)))) return {};
    Planned to;
    to.step.kind = parts_.gated ? StepKind::swiglu : StepKind::linear;
    to.step.arguments.linear = {p, {}};
    to.step.in_stride[0] = static_cast<int32_t>(p.x_stride), to.step.out_stride = static_cast<int32_t>(outputs);
    to.step.groups = static_cast<int32_t>(groups);
    while (2 << to.step.stage_shift <= rows) ++to.step.stage_shift;
    to.early = {parts_.bias, parts_.weight};
    to.reads = {parts_.x};
    to.outputs = {parts_.y};
    return to;
  }

 private:
  static constexpr int64_t kNarrow = 128;
  LinearParts parts_;
  Tensor kept_;
};

std::unique_ptr<StepKernel> lower_linear(const Operands& call, bool gated, std::string& why) {
  const Tensor x = call.tensor(0), weight = call.tensor(1), bias = call.tensor(2), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(x)) return nullptr;
  why = "elements of a row are not adjacent";
  if (x.stride(1) != 1 || weight.stride(1) != 1 || y.stride(1) != 1 || (bias.defined() && !bias.is_contiguous())) return nullptr;
  LinearParts parts{
      ops::linear_arguments({x, weight, ops::if_defined(bias)}, y), gated, call.span(x), call.span(weight), call.span(bias), call.span(y)};
  Linear constant = parts.arguments;
  constant.weight_is_constant = true;
  why = "a library computes this product faster";
  if (!(gated ? kernels::linear_swiglu_supports(constant, call.gpu) : kernels::linear_supports(constant, call.gpu))) return nullptr;
  return std::make_unique<LinearKernel>(std::move(parts), x);
}

constexpr Lowering kLinearLowerings[] = {
    {"based::linear", [](const Operands& call, std::string& why) { return lower_linear(call, false, why); }},
    {"based::linear_swiglu", [](const Operands& call, std::string& why) { return lower_linear(call, true, why); }},
};

}  // namespace

std::span<const Lowering> lowerings_of_linear() { return kLinearLowerings; }

}  // namespace based::decode
