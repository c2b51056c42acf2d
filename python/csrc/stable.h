// The common part of torch.ops.based: tensors through LibTorch's stable C ABI, checks of arguments, kernels of a tensor's device.
// The wheel's compiled code calls no C++ function of LibTorch, so that one file serves all versions of torch since 2.10.
//
//   Tensor forward(const Tensor& x, const OptionalTensor& bias, int64_t window) {   // arguments in the schema's order
//     const FooLaunchers* table = launchers_for<FooLaunchers>("foo", x);
//     if (table == nullptr) return call_reference<Tensor>("foo", x, bias, window);
//     require_shape("foo", "x", x, {-1, -1});
//     …
//     require_ok("foo", table->forward(arguments, queue_of(x)), x);
//   }
//   void register_kernels(Library& m) { implement<forward>(m, "foo"); }
//   STABLE_TORCH_LIBRARY_FRAGMENT(based, m) { define_with_reference(m, "foo(Tensor x, Tensor? bias, int window) -> Tensor"); }
//   STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
//   STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "based/kernels/common/launchers.h"
#include "based/ops/framework/checks.h"
#include "reference.h"

namespace based::python {

using Tensor = torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Library = torch::stable::detail::StableLibrary;
using torch::headeronly::ScalarType;
using Sizes = std::vector<int64_t>;

// Checks that the C++ library makes too, with the same messages; they throw based::Error.
using ops::device_text;
using ops::has_kernel;
using ops::kernel_dtype;
using ops::require;
using ops::require_floating;
using ops::require_like;
using ops::require_row_starts;
using ops::require_shape;
using ops::require_type;
using ops::shape_text;
using ops::sum_type;
using ops::type_name;

// Throws unless offsets on the CPU start at 0, do not decrease, and end at `tokens`. Offsets on a GPU are not read.
void check_row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens);
// Throws unless slots are int64 [rows], on the CPU each within [0, state_slots) and none twice.
void require_slots(const char* op, const Tensor& slots, int64_t rows, int64_t state_slots);
// The same for a state that an operator updates in place at `slots`: tensors [slots of the state, …], which must be contiguous.
void require_state_slots(const char* op, std::initializer_list<Tensor> state, const Tensor& slots, int64_t rows);

inline Sizes sizes_of(const Tensor& tensor) { return Sizes(tensor.sizes().begin(), tensor.sizes().end()); }

// Uninitialised and contiguous, on the device of `like`; of its type unless another is given.
Tensor empty(const Sizes& sizes, const Tensor& like);
Tensor empty(const Sizes& sizes, const Tensor& like, ScalarType type);
Tensor zeros(const Sizes& sizes, const Tensor& like, ScalarType type);
// A contiguous copy.
Tensor copy_of(const Tensor& tensor);
// The tensor itself where it is contiguous (and of the type), else a contiguous copy.
Tensor as_contiguous(const Tensor& tensor);
Tensor as_contiguous(const Tensor& tensor, ScalarType type);
OptionalTensor as_contiguous(const OptionalTensor& tensor);
// tensor · factor, of its type.
Tensor scaled(const Tensor& tensor, double factor);
// a + b, of their type.
Tensor sum_of(const Tensor& a, const Tensor& b);
// [rows, columns] with any stride between rows and contiguous columns: `matrix` itself or a copy.
Tensor with_unit_columns(const Tensor& matrix);
// [tokens, heads, dim] with any stride between tokens and a token's heads contiguous: `x` itself or a copy.
Tensor with_packed_heads(const Tensor& x);
// Memory of a kernel's intermediate results, on the device of `like`.
inline Tensor scratch_memory(int64_t bytes, const Tensor& like) { return empty({bytes}, like, ScalarType::Byte); }

// Addresses of a tensor's first element. `pointer` and `written` throw where T is not its type.
inline const void* data(const Tensor& tensor) { return tensor.const_data_ptr(); }
inline const void* data(const OptionalTensor& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }
inline void* written_data(const Tensor& tensor) { return tensor.mutable_data_ptr(); }
template <class T>
const T* pointer(const Tensor& tensor) {
  return tensor.const_data_ptr<T>();
}
template <class T>
const T* pointer(const OptionalTensor& tensor) {
  return tensor ? tensor->const_data_ptr<T>() : nullptr;
}
template <class T>
T* written(const Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}

// Sets the rows of launch.arguments; launch.starts owns the offsets, or shares the caller's.
template <class Launch>
void set_rows(Launch& launch, const Tensor& cu_seqlens) {
  launch.starts = as_contiguous(cu_seqlens);
  launch.arguments.row_start = pointer<int64_t>(launch.starts);
  launch.arguments.rows = cu_seqlens.size(0) - 1;
}

inline kernels::Device kernel_device(const Tensor& tensor) { return tensor.is_cuda() ? kernels::Device::cuda : kernels::Device::cpu; }
// Where a launch on this tensor runs: torch's current stream of its GPU, or the CPU.
kernels::Queue queue_of(const Tensor& tensor);
// Whether products of fp32 matrices on a GPU may be rounded to TF32; torch.ops.based.set_tf32 sets it. Off at first, as in torch.
bool uses_tf32();

// Warns once per operator that a call on a GPU runs the reference.
void warn_of_reference(const char* op, const Tensor& tensor);
// The launchers of `tensor`'s device for a call of `op` that a kernel must also support. Null: the caller runs the reference.
template <class Table>
const Table* launchers_for(const char* op, const Tensor& tensor, bool supported = true) {
  const Table* table = has_kernel(tensor) && supported ? kernels::launchers<Table>(kernel_device(tensor)) : nullptr;
  if (table == nullptr && tensor.is_cuda()) warn_of_reference(op, tensor);
  return table;
}

// Throws where a kernel refused its arguments or did not run. If `like` is on a GPU, the text names the card, its driver and the wheel.
void require_ok(const char* op, kernels::Status status, const Tensor& like);

namespace detail {

// Throws unless the wheel's kernels run on this GPU; the text names the card, its driver and the wheel. Checks a GPU once.
void require_card(int32_t index);
// Throws std::runtime_error by the C++ runtime that torch uses; the wheel has its own copy, whose exceptions torch must not receive.
[[noreturn]] void throw_to_torch(const char* message);
const char* keep_message(const char* message);  // until the thread's next message

inline void find_gpu(const Tensor& tensor, const Tensor*& gpu) {
  if (gpu == nullptr && tensor.defined() && tensor.is_cuda()) gpu = &tensor;
}
inline void find_gpu(const OptionalTensor& tensor, const Tensor*& gpu) {
  if (tensor) find_gpu(*tensor, gpu);
}
template <class Number>
void find_gpu(const Number&, const Tensor*&) {}

void require_same_device(const char* op, size_t argument, const Tensor& tensor, const Tensor& gpu);
inline void check_device(const char* op, size_t argument, const Tensor& tensor, const Tensor& gpu) {
  if (tensor.defined()) require_same_device(op, argument, tensor, gpu);
}
inline void check_device(const char* op, size_t argument, const OptionalTensor& tensor, const Tensor& gpu) {
  if (tensor) check_device(op, argument, *tensor, gpu);
}
template <class Number>
void check_device(const char*, size_t, const Number&, const Tensor&) {}

template <auto kFunction>
inline const char* operator_name = nullptr;

// Calls an operator's function with the GPU of its arguments as the current device.
template <auto kFunction, class Function = decltype(kFunction)>
struct OnDevice;
template <auto kFunction, class Result, class... Arguments>
struct OnDevice<kFunction, Result (*)(Arguments...)> {
  static Result run(Arguments... arguments) {
    const Tensor* gpu = nullptr;
    (find_gpu(arguments, gpu), ...);
    if (gpu == nullptr) return kFunction(arguments...);
    size_t argument = 0;
    (check_device(operator_name<kFunction>, ++argument, arguments, *gpu), ...);
    const torch::stable::accelerator::DeviceGuard guard(gpu->get_device_index());
    require_card(gpu->get_device_index());
    return kFunction(arguments...);
  }
};

template <auto kFunction>
void boxed(StableIValue* stack, uint64_t arguments, uint64_t outputs) {
  const char* failure = nullptr;
  try {
    TORCH_BOX((&OnDevice<kFunction>::run))(stack, arguments, outputs);
  } catch (const std::exception& error) {
    failure = keep_message(error.what());
  }
  if (failure != nullptr) throw_to_torch(failure);
}

}  // namespace detail

// Registers a function under the operator's name, for the dispatch key of a STABLE_TORCH_LIBRARY_IMPL block. Its parameters are const
// Tensor&, const OptionalTensor&, int64_t, double and bool, in the schema's order.
template <auto kFunction>
void implement(Library& library, const char* name) {
  detail::operator_name<kFunction> = name;
  library.impl(name, &detail::boxed<kFunction>);
}

}  // namespace based::python
