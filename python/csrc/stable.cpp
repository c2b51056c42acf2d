#include "stable.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

#include "based/kernels/common/cpu/parallel.h"
#include "card.h"
#include "loaded.h"

namespace based::python {
namespace {

bool tf32 = false;
void set_tf32(bool on) { tf32 = on; }

// The kernels' loops run on torch's threads, so that there is one pool and torch.set_num_threads counts.
int max_threads() {
  uint32_t threads = 1;
  TORCH_ERROR_CODE_CHECK(torch_get_num_threads(&threads));
  return static_cast<int>(threads);
}

void run_parts(int64_t parts, void (*body)(void* context, int64_t part), void* context) {
  const auto range = [=](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) body(context, part);
  };
  torch::stable::parallel_for(0, parts, 1, range);
}

const bool kThreadsAreSet = [] {
  kernels::cpu::host_threads = {max_threads, run_parts};
  return true;
}();

int64_t read_reference_calls() { return reference_calls; }

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def("set_tf32(bool on) -> ()");
  m.def("reference_calls() -> int");
}
STABLE_TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) {
  implement<set_tf32>(m, "set_tf32");
  implement<read_reference_calls>(m, "reference_calls");
}

}  // namespace

void check_row_starts(const char* op, const char* name, const Tensor& cu_seqlens, int64_t tokens) {
  if (!cu_seqlens.is_cpu()) return;
  const int64_t* starts = pointer<int64_t>(cu_seqlens);
  const int64_t stride = cu_seqlens.stride(0), last = cu_seqlens.size(0) - 1;
  require(starts[0] == 0, op, name, " must start at 0, got ", starts[0]);
  for (int64_t i = 1; i <= last; ++i) {
    const int64_t before = starts[(i - 1) * stride], at = starts[i * stride];
    require(at >= before, op, name, " must not decrease, got ", before, " then ", at);
  }
  require(starts[last * stride] == tokens, op, name, " must end at the number of tokens, ", tokens, ", got ", starts[last * stride]);
}

void require_slots(const char* op, const Tensor& slots, int64_t rows, int64_t state_slots) {
  require_shape(op, "slots", slots, {rows});
  require_type(op, "slots", slots, ScalarType::Long);
  if (!slots.is_cpu()) return;
  std::vector<bool> seen(static_cast<size_t>(state_slots));
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t slot = pointer<int64_t>(slots)[i * slots.stride(0)];
    require(slot >= 0 && slot < state_slots, op, "slots must be 0..", state_slots - 1, ", got ", slot);
    require(!seen[static_cast<size_t>(slot)], op, "slots must differ, got ", slot, " twice");
    seen[static_cast<size_t>(slot)] = true;
  }
}

void require_state_slots(const char* op, std::initializer_list<Tensor> state, const Tensor& slots, int64_t rows) {
  for (const Tensor& tensor : state) require(tensor.is_contiguous(), op, "the state must be contiguous");
  require_slots(op, slots, rows, state.begin()->size(0));
}

Tensor empty(const Sizes& sizes, const Tensor& like) { return empty(sizes, like, like.scalar_type()); }

Tensor empty(const Sizes& sizes, const Tensor& like, ScalarType type) {
  Sizes strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(sizes[i], 1);
  int32_t device_type = 0, device_index = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  const auto code = torch::stable::detail::to<int32_t>(torch::stable::detail::from(type));
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), code, device_type, device_index, &handle));
  return Tensor(handle);
}

Tensor zeros(const Sizes& sizes, const Tensor& like, ScalarType type) {
  Tensor made = empty(sizes, like, type);
  return made.numel() == 0 ? made : torch::stable::zero_(made);
}

Tensor copy_of(const Tensor& tensor) {
  Tensor made = empty(sizes_of(tensor), tensor);
  return torch::stable::copy_(made, tensor);
}

Tensor as_contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : copy_of(tensor); }

Tensor as_contiguous(const Tensor& tensor, ScalarType type) {
  if (tensor.scalar_type() == type) return as_contiguous(tensor);
  Tensor made = empty(sizes_of(tensor), tensor, type);
  return torch::stable::copy_(made, tensor);
}

OptionalTensor as_contiguous(const OptionalTensor& tensor) { return tensor ? OptionalTensor(as_contiguous(*tensor)) : std::nullopt; }

Tensor scaled(const Tensor& tensor, double factor) {
  Tensor scalar = empty({}, tensor, ScalarType::Float);
  std::array<StableIValue, 2> stack{torch::stable::detail::from(tensor), torch::stable::detail::from(torch::stable::fill_(scalar, factor))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mul", "Tensor", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor sum_of(const Tensor& a, const Tensor& b) { return torch::stable::subtract(a, b, -1); }

Tensor with_unit_columns(const Tensor& matrix) { return matrix.stride(1) == 1 ? matrix : copy_of(matrix); }

Tensor with_packed_heads(const Tensor& x) {
  const bool packed = x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == x.size(2));
  return packed ? x : copy_of(x);
}

kernels::Queue queue_of(const Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  // The function is a part of libtorch_cuda.so, which torch's CPU builds lack, so it is not linked.
  using CurrentStream = AOTITorchError(int32_t, void**);
  static CurrentStream* const current_stream = loaded_function<CurrentStream>("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  require(current_stream != nullptr, "based", "this build of torch has no CUDA streams");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(current_stream(tensor.get_device_index(), &stream));
  return kernels::on_stream(stream);
}

bool uses_tf32() { return tf32; }

void warn_of_reference(const char* op, const Tensor& tensor) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  if (!warned.insert(op).second) return;
  const std::string message = std::string(op) + ": " + wheel_text() + " has no kernel for " + type_name(tensor.scalar_type()) + " " +
                              shape_text(tensor) + " on " + device_text(tensor.device()) + "; the reference in Python runs, which is slow";
  aoti_torch_warn(op, __FILE__, static_cast<uint32_t>(__LINE__), message.c_str());
}

void require_ok(const char* op, kernels::Status status, const Tensor& like) {
  if (status.ok()) return;
  if (!like.is_cuda()) require(false, op, status.what);
  require(false, op, status.what, " (", wheel_text(), " on ", card_text(card_of(like.get_device_index())), ")");
}

void throw_last_error(const std::string& op) {
  using What = const char*();
  static What* const what = loaded_function<What>("libtorch_cpu.so", "torch_exception_get_what_without_backtrace");  // since torch 2.13
  const char* const text = what != nullptr ? what() : nullptr;
  throw std::runtime_error(text != nullptr ? text : op + " failed; torch has written the reason to stderr");
}

namespace detail {

void require_same_device(const char* op, size_t argument, const Tensor& tensor, const Tensor& gpu) {
  if (!tensor.is_cuda() || tensor.get_device_index() != gpu.get_device_index())
    require(false, op, "argument ", argument, " must be on ", device_text(gpu.device()), ", got ", device_text(tensor.device()));
}

const char* keep_message(const char* message) {
  thread_local std::string kept;
  kept = message;
  return kept.c_str();
}

// The wheel links its own libstdc++, since the newest one may be too new for the machine. An exception of that copy would leave the
// counters of torch's copy wrong, so the exception is made by torch's.
void throw_to_torch(const char* message) {
  using Throw = void(const char*);
  static Throw* const throw_runtime_error = loaded_function<Throw>("libstdc++.so.6", "_ZSt21__throw_runtime_errorPKc");
  if (throw_runtime_error != nullptr) throw_runtime_error(message);
  throw std::runtime_error(message);
}

}  // namespace detail
}  // namespace based::python
