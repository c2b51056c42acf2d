// Norms. Their two halves become parts of the layers before and after (join_norms.h), or they are instructions of the step's program.
#include "based/ops/norm/rms_norm.h"
#include "based/decode/step_program.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

using kernels::DType;
using kernels::RmsNorm;

class NormKernel final : public StepKernel {
 public:
  explicit NormKernel(NormParts parts) : parts_(std::move(parts)) {}
  Status launch(Queue queue) const override { return decode::launch(parts_.arguments, queue); }
  int64_t rows() const override { return parts_.arguments.rows; }
  const NormParts* norm() const override { return &parts_; }

  std::optional<Planned> instruction(const StepLimits& limits, std::string& why) const override {
    const RmsNorm& p = parts_.arguments;
    why = "is not one sequence in bf16 of an fp32 stream";
    if (p.rows != limits.tokens || p.x_dtype != DType::f32 || p.dtype != DType::bf16 || p.deferred != nullptr) return {};
    why = "is too wide for a block";
    if (p.width % 8 != 0 || p.width > 4 * limits.threads) return {};
    for (const void* memory : {p.x, p.add, static_cast<const void*>(p.sum), p.weight, static_cast<const void*>(p.y)})
      if (!kernels::aligned16(memory)) return {};
    Planned to;
    to.step.kind = kernels::StepKind::norm;
    to.step.arguments.norm = p;
    to.step.in_stride[0] = to.step.out_stride = static_cast<int32_t>(p.width);
    to.early = {parts_.weight};
    to.reads = {parts_.add};
    to.outputs = {parts_.y};
    to.x = parts_.x, to.sum = parts_.sum;
    return to;
  }

 private:
  NormParts parts_;
};

// With `added`, the sum replaces x.
std::unique_ptr<StepKernel> lower_rms_norm(const Operands& call, const Tensor& x, const Tensor& added, const Tensor& weight, double eps,
                                           std::string& why) {
  const Tensor y = call.result(), sum = added.defined() ? x : Tensor();
  why = "no kernel for this type";
  if (!ops::has_kernel(x) || !ops::has_kernel(weight)) return nullptr;
  why = "is not contiguous";
  if (!x.is_contiguous() || !weight.is_contiguous() || (added.defined() && !added.is_contiguous())) return nullptr;
  const RmsNorm arguments = ops::rms_norm_arguments({x, added, {}, sum}, weight, eps, y);
  return std::make_unique<NormKernel>(
      NormParts{arguments, call.span(x), call.span(added), call.span(sum), call.span(weight), call.span(y)});
}

std::unique_ptr<StepKernel> lower_alone(const Operands& call, std::string& why) {
  return lower_rms_norm(call, call.tensor(0), {}, call.tensor(1), call.number(2), why);
}
std::unique_ptr<StepKernel> lower_adding(const Operands& call, std::string& why) {
  why = "adds the outputs of more than one layer";
  if (call.tensor(4).defined()) return nullptr;
  return lower_rms_norm(call, call.tensor(0), call.tensor(1), call.tensor(2), call.number(3), why);
}

constexpr Lowering kRmsNormLowerings[] = {{"based::rms_norm", lower_alone}, {"based::rms_norm_add_", lower_adding}};

}  // namespace

std::span<const Lowering> lowerings_of_rms_norm() { return kRmsNormLowerings; }

}  // namespace based::decode
