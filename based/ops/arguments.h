// What every operator does with its arguments: errors that name operator, argument and value, and the types that sums are kept in.
#pragma once
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "based/core/error.h"
#include "based/kernels/kernel.h"
#include "based/ops/torch.h"

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

// "must have shape [sizes], got …"; a negative size stands for any.
void require_shape(const char* op, const char* name, const Tensor& tensor, at::IntArrayRef sizes);
// Floating, and of the type and device of `like`.
void require_like(const char* op, const char* name, const Tensor& tensor, const Tensor& like);
void require_type(const char* op, const char* name, const Tensor& tensor, at::ScalarType type);

// The offsets of packed rows as numbers: int64 [rows + 1], from 0, non-decreasing, up to `tokens`. Offsets on a device are waited for once
// and then known until ATen writes or frees them.
std::vector<int64_t> row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens);
// The same checks where the offsets are on the CPU; values on a device are not waited for.
void check_row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens);
// int64 [rows], each within the state's slots, none twice.
void require_slots(const char* op, const Tensor& slots, int64_t rows, int64_t state_slots);

// Whether fast kernels exist for tensors of this type: fp32 and bf16. Others run the reference, with the autograd of its ATen operators.
bool has_kernel(const Tensor& tensor);
// The same for this call, which a kernel must also `support`. On a GPU, where the reference is far slower, it says once an operator that
// the reference runs.
bool uses_kernel(const char* op, const Tensor& tensor, bool supported = true);
kernels::DType kernel_dtype(const Tensor& tensor);
// Throws Error where a kernel refused its arguments; kernels name themselves.
void require_ok(kernels::Status status);

// [rows, columns] whose rows may lie any distance apart, but a row's entries side by side: `matrix` itself or a copy.
Tensor with_unit_columns(const Tensor& matrix);
// [tokens, heads, dim] whose tokens may lie any distance apart, but a token's heads side by side: `x` itself or a copy.
Tensor with_packed_heads(const Tensor& x);

// Sums of half-width types are kept in fp32; others in their own type.
inline at::ScalarType sum_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf ? at::kFloat : tensor.scalar_type();
}

// Uninitialised memory for a kernel's intermediates, where `like` is.
inline Tensor scratch_memory(int64_t bytes, const Tensor& like) { return at::empty({bytes}, like.options().dtype(at::kByte)); }

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();  // of kernels that take every size

// Whether nobody else can see this memory, so that a backward pass may write it.
inline bool is_sole_owner(const Tensor& tensor) {
  return !torch::GradMode::is_enabled() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// Whether gradients are asked of an operator called with these.
bool wants_gradient(std::initializer_list<Tensor> inputs);
// For operators that work in place and have no gradient.
void require_no_gradient(const char* op, std::initializer_list<Tensor> inputs);

inline Tensor value_or_undefined(const OptionalTensor& tensor) { return tensor ? *tensor : Tensor(); }
// The reverse: what autograd saved as undefined is absent again.
inline OptionalTensor if_defined(const Tensor& tensor) { return tensor.defined() ? OptionalTensor(tensor) : std::nullopt; }

// The operator "based::<name>" as a callable of this signature.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<Signature>();
}

}  // namespace based::ops
