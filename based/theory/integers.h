// Exact arithmetic on integers. All constants of the paper's constructions are integers, so that no rationals are needed.
#pragma once
#include <cstdint>

#include "based/core/error.h"

namespace based::theory {

// An arithmetic says what a layer computes with: its values, of which Value() is zero, and how they are added and multiplied. This one is
// the integers of 64 bits; what does not fit is an Error, never a wrapped number.
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

int64_t ceil_log2(int64_t value);            // ⌈log₂ value⌉ of value ≥ 1
int64_t bit_of(int64_t value, int64_t bit);  // 0 or 1, bit 0 the least

}  // namespace based::theory
