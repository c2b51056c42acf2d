// An operator and its reference. The kernels support fp32 and bf16, and some operators only certain sizes or only GPUs. Every other call
// runs the operator "NAME_reference", which has the same schema; based_cpp/ops implements it in Python for every device and floating type.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace based::python {

// Defines "NAME(...) -> ..." and "NAME_reference(...) -> ...".
inline void define_with_reference(torch::stable::detail::StableLibrary& library, const char* schema) {
  library.def(schema);
  std::string reference(schema);
  library.def(reference.insert(reference.find('('), "_reference").c_str());
}

namespace detail {

template <class Result>
struct Outputs {
  static constexpr size_t kCount = 1;
  static Result from(const StableIValue* stack) { return torch::stable::detail::to<Result>(stack[0]); }
};
template <class... T>
struct Outputs<std::tuple<T...>> {
  static constexpr size_t kCount = sizeof...(T);
  static std::tuple<T...> from(StableIValue* stack) { return torch::stable::detail::unbox_to_tuple<T...>(stack); }
};
template <>
struct Outputs<void> {
  static constexpr size_t kCount = 0;
  static void from(const StableIValue*) {}
};

}  // namespace detail

// Throws std::runtime_error with the text of the exception that torch caught last.
[[noreturn]] void throw_last_error(const std::string& op);

// The number of calls of references; torch.ops.based.reference_calls reads it.
inline std::atomic<int64_t> reference_calls = 0;

// Calls "based::<name>_reference" with the operator's arguments.
template <class Result, class... Arguments>
Result call_reference(std::string_view name, const Arguments&... arguments) {
  using Outputs = detail::Outputs<Result>;
  ++reference_calls;
  std::array<StableIValue, std::max(sizeof...(Arguments), Outputs::kCount)> stack{torch::stable::detail::from(arguments)...};
  const std::string qualified = "based::" + std::string(name) + "_reference";
  if (torch_call_dispatcher(qualified.c_str(), "", stack.data(), TORCH_ABI_VERSION) != TORCH_SUCCESS) throw_last_error(qualified);
  return Outputs::from(stack.data());
}

}  // namespace based::python
