#include "based/mixers/kit/formula.h"

#include <gtest/gtest.h>

#include "based/core/error.h"

namespace based {
namespace formula_test {

TEST(Formula, IsTheArithmeticAndItsValue) {
  const Formula d{"d", 16}, heads{"heads", 3}, tokens{"tokens", 100};
  const struct {
    Formula formula;
    const char* text;
    int64_t value;
  } cases[] = {{4 * heads * (1 + d + d * (d + 1) / 2), "4 · heads · (1 + d + d · (d + 1) / 2)", 1836},
               {4 * (tokens / d), "4 · (tokens / d)", 24},
               {4 * tokens / d, "4 · tokens / d", 25},
               {tokens / (4 * d), "tokens / (4 · d)", 1},
               {tokens - (d - 1), "tokens - (d - 1)", 85},
               {tokens - d + 1, "tokens - d + 1", 85},
               {(tokens - d) * (heads + 1), "(tokens - d) · (heads + 1)", 336}};
  for (const auto& one : cases) {
    EXPECT_EQ(one.formula.text(), one.text);
    EXPECT_EQ(one.formula.value(), one.value) << one.text;
  }
  EXPECT_TRUE(Formula().is_none());
  EXPECT_FALSE(d.is_none());
}

TEST(Formula, WhatDoesNotFitIsAnError) {
  const Formula large{"l_max", int64_t{1} << 40};
  EXPECT_THROW(large * large, Error);
  EXPECT_THROW(large / 0, Error);
}

}  // namespace formula_test
}  // namespace based
