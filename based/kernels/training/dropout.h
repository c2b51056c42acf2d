// Dropout with a counter-based generator: whether an element is dropped is a function of (seed of the run, step, place in the model,
// element). So a run is reproducible, and a backward pass drops the same elements as its forward.
#pragma once
#include "based/kernels/common/launchers.h"
#include "based/kernels/common/random_bits.h"

namespace based::kernels {

struct Dropout {
  uint64_t key = 0;        // dropout_key(seed, step, place, first)
  uint32_t threshold = 0;  // dropout_threshold(p); 0: nothing is dropped
  float scale = 1;         // 1/(1 − p), factor of the elements that are kept
};

// `place` distinguishes the uses of dropout in a step: embeddings, each layer's attention. With `first`, element i under this key is
// element first + i under the key without it, so that the parts of a divided batch draw as the whole.
BASED_ON_BOTH uint64_t dropout_key(uint64_t seed, uint64_t step, uint64_t place, uint64_t first = 0) {
  return mixed_bits(mixed_bits(mixed_bits(seed + kGoldenGamma) + step) + place) + first * kGoldenGamma;
}

inline uint32_t dropout_threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

BASED_ON_BOTH bool is_dropped(uint64_t key, uint64_t element, uint32_t threshold) {
  return static_cast<uint32_t>(mixed_bits(key + element * kGoldenGamma) >> 32) < threshold;
}

// y_i = x_i·scale, or 0 where element first_element + i is dropped.
struct DropElements {             // caller owns all memory
  const void* x = nullptr;        // [count], contiguous
  void* y = nullptr;              // [count], contiguous; may be x
  const int64_t* step = nullptr;  // [1], on the device of x; read by the kernel, so that a recorded launch draws anew for each step
  int64_t count = 0, seed = 0, place = 0;
  uint32_t threshold = 0;  // threshold and scale as in Dropout
  float scale = 1;
  DType dtype = DType::f32;  // type of x and y; the product is fp32
  int64_t first_element = 0;
};

namespace cpu {
Status dropout(const DropElements&);
}  // namespace cpu

namespace cuda {
Status dropout(const DropElements&, Queue);
}  // namespace cuda

// A device's launcher, as above.
struct DropoutLaunchers {
  Status (*dropout)(const DropElements&, Queue);
};

}  // namespace based::kernels
