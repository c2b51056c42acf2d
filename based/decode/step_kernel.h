// What an operator's call becomes in a step on a GPU. An operator brings its own in one file of based/decode, and one line in
// lowerings.def; one that brings none runs as it is.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "based/decode/span.h"
#include "based/kernels/activation.h"
#include "based/kernels/gpu.h"
#include "based/kernels/linear.h"
#include "based/kernels/pointwise.h"
#include "based/ops/torch.h"

namespace based::decode {

using at::Tensor;
using kernels::Gpu;
using kernels::Status;
using kernels::Stream;

class Effects;   // effects.h
struct Planned;  // step_program.h
struct StepLimits;
class PendingTokens;  // pending.h

// How kernels with these arguments are launched on a GPU; decode/cuda/launchers.cpp sets them, and there are none elsewhere.
template <class Arguments>
inline Status (*launcher)(const Arguments&, Stream) = nullptr;

struct GatedLinear {
  kernels::Linear layer;
};

// A norm: y of (x + add), where the sum goes back to the residual stream.
struct NormParts {
  kernels::RmsNorm arguments;
  Span x, add, sum, weight, y;
};
// A linear layer; `gated`: y is half of the outputs times the SiLU of the other half.
struct LinearParts {
  kernels::Linear arguments;
  bool gated = false;
  Span x, weight, bias, y;
};
// A function of each number of x.
struct ActivationParts {
  kernels::Activate arguments;
  Span x, y;
};

class StepKernel;
// A kernel that also does what `taken` kernels right before it do.
struct StepChain {
  std::unique_ptr<StepKernel> kernel;  // null: none is taken
  size_t taken = 0;
};

class StepKernel {
 public:
  virtual ~StepKernel() = default;
  // What a step's values allow: memory that nothing in the step writes, or that this call alone touches, may be read while kernels ahead
  // of this one still run. Whether anything may; the kernel is then launched anew.
  virtual bool read_early(const Effects&, size_t /*unit*/) { return false; }
  virtual Status launch(Stream) const = 0;
  virtual int64_t rows() const = 0;  // sequences of the step
  // With its state's updates put off: tokens wait in `pending`, which the engine owns. Null: not here, or not worth it.
  virtual std::unique_ptr<StepKernel> deferred(const Gpu&, const Effects&, size_t /*unit*/) const { return nullptr; }
  virtual std::shared_ptr<PendingTokens> pending() const { return nullptr; }
  // As an instruction of the kernel of a whole step; nothing, saying why, where it is none.
  virtual std::optional<Planned> instruction(const StepLimits&, std::string& why) const;
  // The same as part of the instruction right before it.
  virtual bool join_instruction(Planned& /*before*/, const StepLimits&) const { return false; }
  // `before`: of the calls right before it, the nearest first; what each makes is read by the one behind it alone.
  virtual StepChain with(std::span<const StepKernel* const> /*before*/, const Gpu&) const { return {}; }
  virtual const NormParts* norm() const { return nullptr; }
  virtual const LinearParts* linear() const { return nullptr; }
  virtual const ActivationParts* activation() const { return nullptr; }
};

// A call's arguments and results, as a lowering sees them: in the order of the operator's schema.
class Operands {
 public:
  Operands(const Gpu& to, const std::vector<c10::IValue>& inputs, const std::vector<c10::IValue>& outputs,
           std::function<Span(const Tensor&)> span)
      : gpu(to), inputs_(inputs), outputs_(outputs), span_(std::move(span)) {}
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
  const char* op;  // "based::linear"
  // Null: this call has no kernel of its own, and `why` says why.
  std::unique_ptr<StepKernel> (*lower)(const Operands&, std::string& why);
};
const Lowering* find_lowering(const std::string& op);  // null: none

}  // namespace based::decode
