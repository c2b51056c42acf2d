// A step of the selective scan. Its kernel reads the state early. After a layer with few inputs that computes the time steps, the kernel
// computes them itself.
#include "based/ops/scan/selective_scan.h"
#include "based/decode/state_kernel.h"
#include "based/kernels/scan/scan_step.h"
#include "based/ops/framework/arguments.h"

namespace based::decode {
namespace {

using kernels::SelectiveScan;
using kernels::SelectiveScanOfLayer;

class ScanKernel final : public StateKernel<SelectiveScan> {
 public:
  struct Parts {
    Span dt, y;
  };
  ScanKernel(const SelectiveScan& arguments, EarlyReads early, Parts parts) : StateKernel(arguments, std::move(early)), parts_(parts) {}

  StepChain absorb_predecessors(std::span<const StepKernel* const> before, const Gpu& gpu) const override {
    const LinearParts* layer = before[0]->linear();
    if (layer == nullptr || layer->gated || !(layer->y == parts_.dt) || share_memory(layer->x, parts_.y)) return {};
    const SelectiveScanOfLayer both{arguments_, layer->arguments};
    if (!kernels::scan_step_makes_dt(both, gpu)) return {};
    return {std::make_unique<ArgumentsKernel<SelectiveScanOfLayer>>(both, arguments_.rows), 1};
  }

 private:
  Parts parts_;
};

std::unique_ptr<StepKernel> lower_selective_scan(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), dt = call.tensor(1), A_log = call.tensor(2), B = call.tensor(3), C = call.tensor(4), D = call.tensor(5),
               z = call.tensor(6), dt_bias = call.tensor(7), state = call.tensor(9), slots = call.tensor(10), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(x)) return nullptr;
  why = "elements of a row are not adjacent";
  for (const Tensor& tensor : {A_log, D, dt_bias, state, slots})
    if (tensor.defined() && !tensor.is_contiguous()) return nullptr;
  for (const Tensor& tensor : {x, dt, z})
    if (tensor.defined() && tensor.stride(1) != 1) return nullptr;
  for (const Tensor& tensor : {B, C})
    if (!tensor.select(0, 0).is_contiguous()) return nullptr;
  const ops::SelectiveScanStep step{
      {x, dt, A_log, B, C, ops::if_defined(D), ops::if_defined(z), ops::if_defined(dt_bias), call.flag(8)}, state, slots};
  const Spans constants{call.span(A_log), call.span(D), call.span(dt_bias), call.span(slots)};
  return std::make_unique<ScanKernel>(ops::selective_scan_step_arguments(step, y), EarlyReads{constants, {call.span(state)}},
                                      ScanKernel::Parts{call.span(dt), call.span(y)});
}

constexpr Lowering kSelectiveScanLowerings[] = {{"based::selective_scan_step", lower_selective_scan}};

}  // namespace

std::span<const Lowering> lowerings_of_selective_scan() { return kSelectiveScanLowerings; }

}  // namespace based::decode
