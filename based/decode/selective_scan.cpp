// A step of the selective scan: its state is read ahead.
#include "based/ops/selective_scan.h"
#include "based/decode/state_kernel.h"
#include "based/ops/arguments.h"

namespace based::decode {
namespace {

std::unique_ptr<StepKernel> lower(const Operands& call, std::string& why) {
  const Tensor x = call.tensor(0), dt = call.tensor(1), A_log = call.tensor(2), B = call.tensor(3), C = call.tensor(4), D = call.tensor(5),
               z = call.tensor(6), dt_bias = call.tensor(7), state = call.tensor(9), slots = call.tensor(10), y = call.result();
  why = "no kernel for this type";
  if (!ops::has_kernel(x)) return nullptr;
  why = "elements of a row that lie apart";
  for (const Tensor& tensor : {A_log, D, dt_bias, state, slots})
    if (tensor.defined() && !tensor.is_contiguous()) return nullptr;
  for (const Tensor& tensor : {x, dt, z})
    if (tensor.defined() && tensor.stride(1) != 1) return nullptr;
  for (const Tensor& tensor : {B, C})
    if (!tensor.select(0, 0).is_contiguous()) return nullptr;
  const ops::SelectiveScanStep step{
      {x, dt, A_log, B, C, ops::if_defined(D), ops::if_defined(z), ops::if_defined(dt_bias), call.flag(8)}, state, slots};
  return std::make_unique<StateKernel<kernels::SelectiveScan>>(ops::selective_scan_step_arguments(step, y),
                                                               ReadAhead{{call.span(A_log), call.span(slots)}, {call.span(state)}});
}

constexpr Lowering kLowerings[] = {{"based::selective_scan_step", lower}};

}  // namespace

std::span<const Lowering> lowerings_of_selective_scan() { return kLowerings; }

}  // namespace based::decode
