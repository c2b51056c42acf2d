// Device memory, random inputs and comparisons for the timings and the tests of the CUDA kernels.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "based/kernels/common/kernel.h"

namespace based::bench {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}
inline void check(kernels::Status status) {
  if (status.ok()) return;
  std::fprintf(stderr, "kernel: %s\n", status.what);
  std::exit(2);
}

// Device memory. It is initialised to NaN in every type, so that elements that no kernel wrote are detected.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  Buffer(Buffer&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }
  void poison();

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// " bf16" or " fp32", for the name of a case.
inline std::string type_name(kernels::DType dtype) { return dtype == kernels::DType::bf16 ? " bf16" : " fp32"; }

// Normally distributed numbers times `scale`, different for each seed.
Buffer random_buffer(int64_t count, kernels::DType dtype, double scale, uint64_t seed);
// `sets` such buffers, with seeds seed, seed + 1, …
std::vector<Buffer> random_buffers(int sets, int64_t count, kernels::DType dtype, uint64_t seed);
Buffer copy_of(const Buffer& from);
Buffer upload(const std::vector<int64_t>& values);
Buffer upload_floats(const std::vector<float>& values);
Buffer zeros(int64_t bytes);
// The elements as double, on the host.
std::vector<double> download(const void* from, kernels::DType dtype, int64_t count);

// ‖a − b‖ / ‖b‖ over `count` elements, a in `dtype`, b in double, both in device memory; NaN where a has a NaN.
double relative_error(const void* a, kernels::DType dtype, const double* b, int64_t count);
// ‖a − b‖ / ‖b‖ on the host.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace based::bench
