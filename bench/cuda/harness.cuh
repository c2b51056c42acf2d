// What the kernel checks and timings share: device memory, random inputs, comparison, timing by graph replay, the result file.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "based/kernels/kernel.h"

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

// Device memory. Starts as NaN in every type, so that an element nobody wrote is found.
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

// Normal numbers times `scale`, different for each seed.
Buffer random_buffer(int64_t count, kernels::DType dtype, double scale, uint64_t seed);
// `sets` of them, with seeds from `seed` on.
std::vector<Buffer> random_buffers(int sets, int64_t count, kernels::DType dtype, uint64_t seed);
Buffer copy_of(const Buffer& from);
Buffer upload(const std::vector<int64_t>& values);
Buffer upload_floats(const std::vector<float>& values);
Buffer zeros(int64_t bytes);
// Elements as double, on the host.
std::vector<double> download(const void* from, kernels::DType dtype, int64_t count);

// ‖a − b‖ / ‖b‖ over `count` elements, a in `dtype`, b in double; NaN where a has one.
double relative_error(const void* a, kernels::DType dtype, const double* b, int64_t count);

// Median milliseconds of one call. A graph of calls that take the working sets 0 … sets − 1 in turn is replayed; the sets together should
// be larger than the L2 cache.
double median_ms(int sets, const std::function<void(int set, cudaStream_t)>& call);
// From now on median_ms makes one plain call, for a profiler.
void call_once_only();
// Working sets of `bytes` each so that together they pass the L2 cache by far.
int working_sets(int64_t bytes);

struct Result {
  std::string headline;  // empty: not one of the issue's lines
  std::string name;
  double value = 0;
  std::string unit = "ms";
  double floor = 0;
  double error = -1;  // against the double reference; negative: not compared
};

// ‖a − b‖ / ‖b‖ on the host.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);

class Report {
 public:
  void add(const Result& result);
  void fail(const std::string& what);
  // Times a call beside the time that its bytes take; see median_ms.
  void time(const std::string& name, int64_t bytes, int sets, const std::function<void(int set, cudaStream_t)>& call);
  // Prints the error and fails where it is not ≤ `limit` (NaN never is).
  void expect(const std::string& what, double error, double limit);
  // For a case that no kernel takes here. Where the device runs Hopper's kernels, which take every case, it fails.
  void no_kernel(const std::string& what);
  int failures() const { return failures_; }
  int without_kernel() const { return without_kernel_; }
  void write(const std::string& path, const std::string& commit) const;

 private:
  std::vector<Result> results_;
  int failures_ = 0, without_kernel_ = 0;
};

constexpr double kBytesPerMs = 4300e6;  // measured device copy, read + write

}  // namespace based::bench
