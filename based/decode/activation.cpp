// Functions of single numbers. The kernel that reads their results computes them too, where it can.
#include "based/decode/step_kernel.h"
#include "based/ops/framework/arguments.h"
#include "based/ops/pointwise/rowwise_activation.h"

namespace based::decode {
namespace {

class ActivationKernel final : public StepKernel {
 public:
  explicit ActivationKernel(const ActivationParts& parts) : parts_(parts) {}
  Status launch(Queue queue) const override { return decode::launch(parts_.arguments, queue); }
  int64_t rows() const override { return parts_.arguments.rows; }
  const ActivationParts* activation() const override { return &parts_; }

 private:
  ActivationParts parts_;
};

std::unique_ptr<StepKernel> lower_activation(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(x)) return nullptr;
  why = "has factors, or is not contiguous";
  if (call.tensor(3).defined() || call.tensor(4).defined() || !x.is_contiguous()) return nullptr;
  kernels::Activate p;
  p.x = x.const_data_ptr(), p.y = y.mutable_data_ptr(), p.rows = x.size(0), p.width = p.x_stride = p.rows == 0 ? 0 : x.numel() / p.rows;
  p.dtype = ops::kernel_dtype(x), p.y_dtype = ops::kernel_dtype(y);
  p.function = static_cast<kernels::Activation>(call.integer(1)), p.scale = static_cast<float>(call.number(2));
  return std::make_unique<ActivationKernel>(ActivationParts{p, call.span(x), call.span(y)});
}

constexpr Lowering kActivationLowerings[] = {{"based::rowwise_activation", lower_activation}};

}  // namespace

std::span<const Lowering> lowerings_of_activation() { return kActivationLowerings; }

}  // namespace based::decode
