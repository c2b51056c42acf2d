#include "based/core/random.h"

#include <cmath>

#include "based/core/error.h"

// Fused multiply-adds would make the last bits depend on the processor.
#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

namespace based {
namespace {

// Natural logarithm computed by correctly rounded operations only, since libraries differ in the last bit. Relative error below 1e-15 for x
// in (0, 1/2]. With x = m·2^e and m in [√½, √2), ln m = 2 artanh((m-1)/(m+1)), evaluated as a series.
double portable_log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.70710678118654752440) {
    mantissa *= 2;
    --exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1), z2 = z * z;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * z2 + 1.0 / k;
  return 2 * z * sum + exponent * 0.69314718055994530942;
}

template <size_t N>
double polynomial(const double (&coefficients)[N], double x) {
  double sum = coefficients[N - 1];
  for (size_t i = N - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// The inverse of the normal distribution function for p in (0, 1): Wichura, algorithm AS 241 (PPND16), relative error about 1e-16.
double inverse_normal(double p) {
  static constexpr double a[] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                 4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static constexpr double b[] = {1.0,
                                 4.2313330701600911252e+1,
                                 6.8718700749205790830e+2,
                                 5.3941960214247511077e+3,
                                 2.1213794301586595867e+4,
                                 3.9307895800092710610e+4,
                                 2.8729085735721942674e+4,
                                 5.2264952788528545610e+3};
  static constexpr double c[] = {1.42343711074968357734e0, 4.63033784615654529590e0,  5.76949722146069140550e0,  3.64784832476320460504e0,
                                 1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double d[] = {1.0,
                                 2.05319162663775882187e0,
                                 1.67638483018380384940e0,
                                 6.89767334985100004550e-1,
                                 1.48103976427480074590e-1,
                                 1.51986665636164571966e-2,
                                 5.47593808499534494600e-4,
                                 1.05075007164441684324e-9};
  static constexpr double e[] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                                 2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                 2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double f[] = {1.0,
                                 5.99832206555887937690e-1,
                                 1.36929880922735805310e-1,
                                 1.48753612908506148525e-2,
                                 7.86869131145613259100e-4,
                                 1.84631831751005468180e-5,
                                 1.42151175831644588870e-7,
                                 2.04426310338993978564e-15};
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(a, r) / polynomial(b, r);
  }
  const double r = std::sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double x = r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6) : polynomial(e, r - 5) / polynomial(f, r - 5);
  return q < 0 ? -x : x;
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0], product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

uint32_t Random::next32() {
  const uint64_t index = position_ / 4;
  if (index != block_index_) {
    const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
    block_ = philox4x32({low(index), low(index >> 32), low(stream_), low(stream_ >> 32)}, {low(seed_), low(seed_ >> 32)});
    block_index_ = index;
  }
  return block_[position_++ % 4];
}

uint64_t Random::next64() {
  const uint64_t low = next32();
  return low | uint64_t{next32()} << 32;
}

double Random::uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }

// Uses the midpoints of 2^52 cells, so that 0 and 1, where the inverse is infinite, never occur.
double Random::normal() { return inverse_normal((static_cast<double>(next64() >> 12) + 0.5) * 0x1p-52); }

// Lemire, "Fast random integer generation in an interval", 2019: the result is the high half of a product; the few words that would bias it
// are rejected.
uint64_t Random::below(uint64_t bound) {
  BASED_ASSERT(bound > 0);
  __extension__ using Wide = unsigned __int128;
  const uint64_t unfair = (0 - bound) % bound;
  while (true) {
    const Wide product = static_cast<Wide>(next64()) * bound;
    if (static_cast<uint64_t>(product) >= unfair) return static_cast<uint64_t>(product >> 64);
  }
}

int64_t Random::between(int64_t low, int64_t high) {
  BASED_ASSERT(low <= high);
  const uint64_t count = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  return static_cast<int64_t>(static_cast<uint64_t>(low) + (count == 0 ? next64() : below(count)));
}

}  // namespace based
