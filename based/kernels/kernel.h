// What every kernel shares. Kernels take a params struct, scratch memory of the caller's and a stream, and return a Status; they allocate
// nothing and know no torch. based/kernels/foo.h declares cpu::foo and, where it exists, cuda::foo on the same struct.
#pragma once
#include <cstddef>
#include <cstdint>

namespace based::kernels {

enum class DType : uint8_t { f32, bf16 };

constexpr int64_t dtype_size(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

// A CUDA stream (cudaStream_t), or nothing on the CPU.
struct Stream {
  void* handle = nullptr;
};

// Empty on success; otherwise what was wrong, as a static string.
struct [[nodiscard]] Status {
  const char* what = nullptr;
  bool ok() const { return what == nullptr; }
};

}  // namespace based::kernels
