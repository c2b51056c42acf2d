// The kernel that a plan launches for an operator's call in a step on a GPU. An operator defines its kernel in one file of based/decode,
// and has one line in lowerings.def. The recorded launches of other operators stay unchanged.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/decode/launch.h"
#include "based/decode/span.h"
#include "based/kernels/common/gpu.h"
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/linear/linear.h"
#include "based/kernels/norm/rms_norm.h"
#include "based/kernels/pointwise/activation.h"
#include "based/runtime/torch.h"

namespace based::decode {

using at::Tensor;
using kernels::Gpu;

class Effects;   // effects.h
struct Planned;  // step_program.h
struct StepLimits;
class PendingTokens;  // pending.h

// A norm: y of (x + add), where the sum is written back to the residual stream.
struct NormParts {
  kernels::RmsNorm arguments;
  Span x, add, sum, weight, y;
};
// A linear layer. With `gated`, y is half of the outputs times the SiLU of the other half.
struct LinearParts {
  kernels::Linear arguments;
  bool gated = false;
  Span x, weight, bias, y;
};
// The operands of a step of a short convolution.
struct ConvSpans {
  Span x, gate, weight, bias, state, slots, y;
  // Whether x begins each row of a layer's outputs.
  bool begins(const Span& outputs) const { return x.storage == outputs.storage && x.begin == outputs.begin; }
  // Whether x and the gate are the first and the second half of each row of a layer's outputs. `bytes`: of half a row.
  bool are_halves_of(const Span& outputs, int64_t bytes) const {
    return begins(outputs) && gate.storage == outputs.storage && gate.begin == x.begin + bytes;
  }
};
// A step of a short convolution.
struct ConvParts {
  kernels::ShortConv arguments;
  ConvSpans spans;
};
// A function of each number of x.
struct ActivationParts {
  kernels::Activate arguments;
  Span x, y;
};

class StepKernel;
// A kernel that also replaces the `predecessors` kernels right before it.
struct StepChain {
  std::unique_ptr<StepKernel> kernel;  // null: it replaces none
  size_t predecessors = 0;
};

class StepKernel {
 public:
  virtual ~StepKernel() = default;
  // Enables early reads as far as the step allows them: memory that nothing in the step writes, or that only this call uses, may be read
  // while earlier kernels still run. Returns whether anything is read early; the plan then launches this kernel instead of the recorded
  // one.
  virtual bool read_early(const Effects&, size_t /*unit*/) { return false; }
  virtual Status launch(Queue) const = 0;
  virtual int64_t rows() const = 0;  // sequences of the step
  // The same kernel with deferred updates of its state: new tokens stay in `pending`, which the engine owns. Null: not possible, or slower.
  virtual std::unique_ptr<StepKernel> deferred(const Gpu&, const Effects&, size_t /*unit*/) const { return nullptr; }
  virtual std::shared_ptr<PendingTokens> pending() const { return nullptr; }
  // The call as an instruction of the kernel of a whole step. Empty, with the reason in `why`, where there is no such instruction.
  virtual std::optional<Planned> instruction(const StepLimits&, std::string& why) const;
  // Extends the instruction right before this call by the call. Returns whether it did.
  virtual bool join_instruction(Planned& /*before*/, const StepLimits&) const { return false; }
  // A kernel that also computes the last of the calls right before this one. `before` has these calls, the nearest first; only the next
  // call reads the results of each.
  virtual StepChain absorb_predecessors(std::span<const StepKernel* const> /*before*/, const Gpu&) const { return {}; }
  virtual const NormParts* norm() const { return nullptr; }
  virtual const LinearParts* linear() const { return nullptr; }
  virtual const ActivationParts* activation() const { return nullptr; }
  virtual std::optional<ConvParts> convolution() const { return {}; }
};

// A call's arguments and results, in the order of the operator's schema.
class Operands {
 public:
  Operands(const Gpu& target, const std::vector<c10::IValue>& inputs, const std::vector<c10::IValue>& outputs,
           std::function<Span(const Tensor&)> span)
      : gpu(target), inputs_(inputs), outputs_(outputs), span_(std::move(span)) {}
  const Gpu& gpu;
  Tensor tensor(size_t i) const { return inputs_[i].isTensor() ? inputs_[i].toTensor() : Tensor(); }  // undefined: none
  double number(size_t i) const { return inputs_[i].toDouble(); }
  int64_t integer(size_t i) const { return inputs_[i].toInt(); }
  bool flag(size_t i) const { return inputs_[i].toBool(); }
  Tensor result() const { return outputs_.at(0).toTensor(); }
  Span span(const Tensor& tensor) const { return tensor.defined() ? span_(tensor) : Span{}; }

 private:
  const std::vector<c10::IValue>&inputs_, &outputs_;
  std::function<Span(const Tensor&)> span_;
};

struct Lowering {
  const char* op;  // Call::name
  // Null: the plan has no kernel for this call; `why` has the reason.
  std::unique_ptr<StepKernel> (*lower)(const Operands&, std::string& why);
};
const Lowering* find_lowering(const std::string& op);  // null: none

}  // namespace based::decode
