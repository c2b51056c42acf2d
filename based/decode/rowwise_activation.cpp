// Functions of single numbers: as part of a kernel that reads them, where one does that.
#include "based/ops/rowwise_activation.h"
#include "based/decode/step_kernel.h"
#include "based/ops/arguments.h"

namespace based::decode {
namespace {

class ActivationKernel final : public StepKernel {
 public:
  explicit ActivationKernel(const ActivationParts& parts) : parts_(parts) {}
  Status launch(Stream stream) const override { return launcher<kernels::Activate>(parts_.arguments, stream); }
  int64_t rows() const override { return parts_.arguments.rows; }
  const ActivationParts* activation() const override { return &parts_; }

 private:
  ActivationParts parts_;
};

std::unique_ptr<StepKernel> lower(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(x)) return nullptr;
  why = "has factors, or rows that lie apart";
  if (call.tensor(3).defined() || call.tensor(4).defined() || !x.is_contiguous()) return nullptr;
  kernels::Activate p;
  p.x = x.const_data_ptr(), p.y = y.mutable_data_ptr(), p.rows = x.size(0), p.width = p.x_stride = p.rows == 0 ? 0 : x.numel() / p.rows;
  p.dtype = ops::kernel_dtype(x), p.y_dtype = ops::kernel_dtype(y);
  p.function = static_cast<kernels::Activation>(call.integer(1)), p.scale = static_cast<float>(call.number(2));
  return std::make_unique<ActivationKernel>(ActivationParts{p, call.span(x), call.span(y)});
}

constexpr Lowering kLowerings[] = {{"based::rowwise_activation", lower}};

}  // namespace

std::span<const Lowering> lowerings_of_rowwise_activation() { return kLowerings; }

}  // namespace based::decode
