// Checks and conversions of operators' arguments: errors that name operator, argument and value, and the types that sums are kept in.
#pragma once
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "based/core/error.h"
#include "based/kernels/common/kernel.h"
#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Throws Error("<op>: <parts…>") unless `ok`.
template <class... Parts>
void require(bool ok, const char* op, const Parts&... parts) {
  if (ok) return;
  std::ostringstream message;
  message << op << ": ";
  (message << ... << parts);
  throw Error(message.str());
}

// Throws Error "must have shape [sizes], got …" for another shape; a negative size matches any.
void require_shape(const char* op, const char* name, const Tensor& tensor, at::IntArrayRef sizes);
// Throws Error unless the tensor is floating and of the type and device of `like`.
void require_like(const char* op, const char* name, const Tensor& tensor, const Tensor& like);
void require_type(const char* op, const char* name, const Tensor& tensor, at::ScalarType type);

// Throws Error unless cu_seqlens are int64 [rows + 1].
void require_row_starts(const char* op, const char* name, const Tensor& cu_seqlens);
// The offsets of packed rows as numbers: int64 [rows + 1], from 0, non-decreasing, up to `tokens`; else throws Error. The host waits once
// for offsets on a device, and keeps the values until ATen writes or frees that memory.
std::vector<int64_t> row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens);
// The same checks for offsets on the CPU. Values on a device are not checked: the host would have to wait for them.
void check_row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens);
// Throws Error unless slots are int64 [rows], and on the CPU each within the state's slots and none twice.
void require_slots(const char* op, const Tensor& slots, int64_t rows, int64_t state_slots);
// The same for a state that an operator updates in place at `slots`: one or several tensors, of which the first is [slots of the state, …].
// Throws Error unless all are contiguous.
void require_state_slots(const char* op, std::initializer_list<Tensor> state, const Tensor& slots, int64_t rows);

// Whether fast kernels exist for tensors of this type: fp32 and bf16. Others run the reference, with the autograd of its ATen operators.
bool has_kernel(const Tensor& tensor);
// The same for a call that a kernel must also support. On a GPU, where the reference is far slower, it warns once per operator that the
// reference runs.
bool uses_kernel(const char* op, const Tensor& tensor, bool supported = true);
kernels::DType kernel_dtype(const Tensor& tensor);
// Throws Error where a kernel refused its arguments; its text names the kernel.
void require_ok(kernels::Status status);

// [rows, columns] with any stride between rows and contiguous columns: `matrix` itself or a copy.
Tensor with_unit_columns(const Tensor& matrix);
// [tokens, heads, dim] with any stride between tokens and a token's heads contiguous: `x` itself or a copy.
Tensor with_packed_heads(const Tensor& x);

// The type of sums: fp32 for half-width types, else the tensor's own.
inline at::ScalarType sum_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf ? at::kFloat : tensor.scalar_type();
}

// Uninitialised memory for a kernel's intermediate results, on the device of `like`.
inline Tensor scratch_memory(int64_t bytes, const Tensor& like) { return at::empty({bytes}, like.options().dtype(at::kByte)); }

// Whether no other tensor shares this memory, so that a backward pass may overwrite it.
inline bool is_sole_owner(const Tensor& tensor) {
  return !torch::GradMode::is_enabled() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// Whether a call with these inputs must record a gradient.
bool wants_gradient(std::initializer_list<Tensor> inputs);
// For operators that work in place and have no gradient: throws Error where one is wanted.
void require_no_gradient(const char* op, std::initializer_list<Tensor> inputs);

inline Tensor value_or_undefined(const OptionalTensor& tensor) { return tensor ? *tensor : Tensor(); }
// The reverse, for tensors that autograd has saved: an undefined tensor is absent.
inline OptionalTensor if_defined(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

// The operator "based::<name>" as a callable of this signature.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
}

}  // namespace based::ops
