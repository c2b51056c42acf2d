// Exact arithmetic on integers. All constants of the paper's constructions are integers, so that no rationals are needed.
#pragma once
#include <cstdint>

#include "based/core/error.h"

namespace based::theory {

// An arithmetic defines the numbers that a layer computes with: their type, with Value() as zero, their sum and their product. This one has
// 64-bit integers and throws Error on overflow.
struct Integers {
  using Value = int64_t;
  static Value constant(int64_t value) { return value; }
  static Value sum(Value a, Value b) {
    Value result = 0;
    if (__builtin_add_overflow(a, b, &result)) throw Error("theory: a sum does not fit into 64 bits");
    return result;
  }
  static Value product(Value a, Value b) {
    Value result = 0;
    if (__builtin_mul_overflow(a, b, &result)) throw Error("theory: a product does not fit into 64 bits");
    return result;
  }
};

int64_t ceil_log2(int64_t value);            // ⌈log₂ value⌉ for value ≥ 1
int64_t bit_of(int64_t value, int64_t bit);  // 0 or 1; bit 0 is the least significant

}  // namespace based::theory
