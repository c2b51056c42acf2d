// Checks and conversions of operators' arguments: errors that name operator, argument and value, and the types that sums are kept in.
#pragma once
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "based/kernels/common/kernel.h"
#include "based/ops/framework/checks.h"
#include "based/runtime/torch.h"

// The namespace of this library's operators in torch's dispatcher: `TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m)`. The Python
// wheel's operators have the same names in `based`, so that both can be loaded by one process.
#define BASED_OPERATOR_NAMESPACE based_cpp

namespace based::ops {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

namespace operators {
constexpr std::string_view kPrefix = C10_STRINGIZE(BASED_OPERATOR_NAMESPACE) "::";
std::string qualified(std::string_view name);            // "foo" -> "based_cpp::foo"
std::string displayed(std::string_view qualified_name);  // "based_cpp::foo" -> "based::foo"; names of other libraries stay as they are
}  // namespace operators

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

// Whether a kernel supports a tensor's type and the call. On a GPU, where the reference is far slower, it warns once per operator that the
// reference runs.
bool uses_kernel(const char* op, const Tensor& tensor, bool supported = true);
// Throws Error where a kernel refused its arguments; its text names the kernel.
void require_ok(kernels::Status status);

// [rows, columns] with any stride between rows and contiguous columns: `matrix` itself or a copy.
Tensor with_unit_columns(const Tensor& matrix);
// [tokens, heads, dim] with any stride between tokens and a token's heads contiguous: `x` itself or a copy.
Tensor with_packed_heads(const Tensor& x);

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

// This library's operator `name` as a callable of this signature.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_operator(std::string_view name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(operators::qualified(name).c_str(), "").template typed<Signature>();
}

}  // namespace based::ops
