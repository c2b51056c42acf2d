// Helpers of the kernels' tests: memory of either type between guard values, random numbers, loops over the machine's instruction sets.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/kernel.h"

namespace based::kernels {

using Reals = std::vector<double>;

inline uint16_t bf16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return std::isnan(x) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
inline double rounded(DType dtype, double x) {
  const float f = static_cast<float>(x);
  return static_cast<double>(dtype == DType::f32 ? f : bf16_value(bf16_bits(f)));
}

// A tensor in memory that a kernel accesses, with NaN before and after it.
class Buffer {
 public:
  Buffer(DType dtype, const Reals& values) : dtype_(dtype), size_(values.size()), bytes_((size_ + 2 * guard) * each()) {
    for (size_t i = 0; i < size_ + 2 * guard; ++i) put(i, std::numeric_limits<double>::quiet_NaN());
    for (size_t i = 0; i < size_; ++i) put(i + guard, values[i]);
  }
  // Filled with NaN.
  Buffer(DType dtype, int64_t size) : Buffer(dtype, Reals(static_cast<size_t>(size), std::nan(""))) {}

  void* data() { return bytes_.data() + guard * each(); }
  float* floats() { return static_cast<float*>(data()); }
  double operator[](int64_t i) const { return get(static_cast<size_t>(i) + guard); }
  Reals values() const {
    Reals out(size_);
    for (size_t i = 0; i < size_; ++i) out[i] = get(i + guard);
    return out;
  }
  bool guards_intact() const {
    for (size_t i = 0; i < guard; ++i)
      if (!std::isnan(get(i)) || !std::isnan(get(size_ + guard + i))) return false;
    return true;
  }
  bool same_bits(const Buffer& other) const { return bytes_ == other.bytes_; }

 private:
  static constexpr size_t guard = 64;
  size_t each() const { return static_cast<size_t>(dtype_size(dtype_)); }
  void put(size_t i, double x) {
    const float f = static_cast<float>(x);
    const uint16_t half = bf16_bits(f);
    dtype_ == DType::f32 ? std::memcpy(&bytes_[i * 4], &f, 4) : std::memcpy(&bytes_[i * 2], &half, 2);
  }
  double get(size_t i) const {
    float f = 0;
    uint16_t half = 0;
    dtype_ == DType::f32 ? std::memcpy(&f, &bytes_[i * 4], 4) : std::memcpy(&half, &bytes_[i * 2], 2);
    return static_cast<double>(dtype_ == DType::f32 ? f : bf16_value(half));
  }
  DType dtype_;
  size_t size_;
  std::vector<unsigned char> bytes_;
};

// Normally distributed numbers, rounded to the type so that the double reference starts from the same values as the kernel.
inline Reals random_reals(int64_t n, unsigned seed, DType dtype, double scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Reals x(static_cast<size_t>(n));
  for (double& value : x) value = rounded(dtype, normal(random) * scale);
  return x;
}

// Runs body once for every instruction set of this machine, then restores the best one.
template <class Body>
void on_every_isa(Body&& body) {
  for (cpu::Isa isa : {cpu::Isa::portable, cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512bf16}) {
    if (!cpu::set_isa(isa)) continue;
    SCOPED_TRACE(cpu::isa_name(isa));
    body();
  }
  cpu::set_isa(cpu::best_isa());
}

// The error relative to the largest value of the reference, or to 1 if that is larger: inputs are scaled for results of about 1.
inline void expect_close(const Reals& got, const Reals& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  double largest = 1, worst = 0;
  size_t where = 0, nan = 0;
  for (double x : expected) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    nan += std::isnan(got[i]);
    if (error > worst) worst = error, where = i;
  }
  EXPECT_EQ(nan, 0u) << what << " has NaN";
  EXPECT_LE(worst, tolerance * largest) << what << " [" << where << "]";
}
inline double tolerance(DType dtype) { return dtype == DType::f32 ? 2e-6 : 4.1e-3; }

}  // namespace based::kernels
