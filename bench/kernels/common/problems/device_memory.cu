#include "bench/kernels/common/problems/device_memory.cuh"

#include <algorithm>
#include <cmath>

namespace based::bench {
namespace {

__device__ uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

template <typename T>
__global__ void fill_normal(T* to, int64_t count, float scale, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = mix(mix(seed) + static_cast<uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5F) * 0x1p-24F, angle = static_cast<float>(bits & 0xffffff) * 0x1p-23F;
    to[i] = static_cast<T>(scale * sqrtf(-2.0F * logf(u)) * cospif(angle));
  }
}

template <typename T>
__global__ void add_squares(const T* a, const double* b, int64_t count, double* sums) {
  double difference = 0, norm = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const double x = static_cast<double>(static_cast<float>(a[i]));
    difference += (x - b[i]) * (x - b[i]), norm += b[i] * b[i];
  }
  atomicAdd(sums, difference);
  atomicAdd(sums + 1, norm);
}

double compare(const void* a, kernels::DType dtype, const double* b, int64_t count) {
  double* sums = nullptr;
  double host[2];
  check(cudaMalloc(&sums, sizeof host), "cudaMalloc");
  check(cudaMemset(sums, 0, sizeof host), "cudaMemset");
  if (dtype == kernels::DType::bf16) {
    add_squares<<<256, 256>>>(static_cast<const __nv_bfloat16*>(a), b, count, sums);
  } else {
    add_squares<<<256, 256>>>(static_cast<const float*>(a), b, count, sums);
  }
  check(cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost), "compare");
  check(cudaFree(sums), "cudaFree");
  return std::sqrt(host[0] / host[1]);
}

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(std::max<int64_t>(bytes, 16)) {
  check(cudaMalloc(&data_, static_cast<size_t>(bytes_)), "cudaMalloc");
  poison();
}
Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
Buffer::~Buffer() {
  if (data_ != nullptr) cudaFree(data_);
}
void Buffer::poison() { check(cudaMemset(data_, 0xff, static_cast<size_t>(bytes_)), "cudaMemset"); }

Buffer random_buffer(int64_t count, kernels::DType dtype, double scale, uint64_t seed) {
  Buffer buffer(count * kernels::dtype_size(dtype));
  if (dtype == kernels::DType::bf16) {
    fill_normal<<<1024, 256>>>(buffer.as<__nv_bfloat16>(), count, static_cast<float>(scale), seed);
  } else {
    fill_normal<<<1024, 256>>>(buffer.as<float>(), count, static_cast<float>(scale), seed);
  }
  check(cudaGetLastError(), "fill_normal");
  return buffer;
}

std::vector<Buffer> random_buffers(int sets, int64_t count, kernels::DType dtype, uint64_t seed) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < sets; ++i) buffers.push_back(random_buffer(count, dtype, 1, seed + static_cast<uint64_t>(i)));
  return buffers;
}

Buffer copy_of(const Buffer& from) {
  Buffer buffer(from.bytes());
  check(cudaMemcpy(buffer.as(), from.as(), static_cast<size_t>(from.bytes()), cudaMemcpyDeviceToDevice), "copy");
  return buffer;
}

namespace {

template <typename T>
Buffer upload_any(const std::vector<T>& values) {
  Buffer buffer(static_cast<int64_t>(values.size() * sizeof(T)));
  check(cudaMemcpy(buffer.as(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return buffer;
}

}  // namespace

Buffer upload(const std::vector<int64_t>& values) { return upload_any(values); }
Buffer upload_floats(const std::vector<float>& values) { return upload_any(values); }

Buffer zeros(int64_t bytes) {
  Buffer buffer(bytes);
  check(cudaMemset(buffer.as(), 0, static_cast<size_t>(buffer.bytes())), "cudaMemset");
  return buffer;
}

std::vector<double> download(const void* from, kernels::DType dtype, int64_t count) {
  std::vector<double> to(static_cast<size_t>(count));
  if (dtype == kernels::DType::bf16) {
    std::vector<__nv_bfloat16> raw(to.size());
    check(cudaMemcpy(raw.data(), from, raw.size() * 2, cudaMemcpyDeviceToHost), "download");
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<double>(__bfloat162float(raw[i]));
  } else {
    std::vector<float> raw(to.size());
    check(cudaMemcpy(raw.data(), from, raw.size() * 4, cudaMemcpyDeviceToHost), "download");
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<double>(raw[i]);
  }
  return to;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return difference == 0 ? 0 : std::sqrt(difference / norm);  // also where both are zero
}

double relative_error(const void* a, kernels::DType dtype, const double* b, int64_t count) { return compare(a, dtype, b, count); }

}  // namespace based::bench
