// Types that all kernels share. A launcher takes a params struct, scratch memory that the caller owns and, on a GPU, a queue, and returns a
// Status. It allocates nothing and does not depend on torch. A family's header declares cpu::foo and cuda::foo on the same struct, and the
// table of both (launchers.h).
#pragma once
#include <cstddef>
#include <cstdint>

namespace based::kernels {

enum class DType : uint8_t { f32, bf16 };

constexpr int64_t dtype_size(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

enum class Device : uint8_t { cpu, cuda };

// Where a launch runs. On a GPU that is a stream (cudaStream_t) of the current device, null for the default stream; the CPU has none.
struct Queue {
  Device device = Device::cpu;
  void* stream = nullptr;
};
constexpr Queue on_stream(void* stream) { return {Device::cuda, stream}; }

// Null on success, otherwise the error message, a static string.
struct [[nodiscard]] Status {
  const char* what = nullptr;
  bool ok() const { return what == nullptr; }
};

}  // namespace based::kernels
