// Checks of initial weights by their moments.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "based/runtime/torch.h"

namespace based {

// Checks samples of N(mean, std): mean and deviation within five of their own deviations.
inline void expect_normal(const std::string& name, const torch::Tensor& drawn, double std, double mean = 0) {
  const auto n = static_cast<double>(drawn.numel());
  EXPECT_NEAR(drawn.mean().item<double>(), mean, 5 * std / std::sqrt(n)) << name;
  EXPECT_NEAR(drawn.std().item<double>(), std, 5 * std / std::sqrt(2 * n)) << name;
}

// Checks samples of a uniform distribution between low and high: none outside, and the first two moments as above.
inline void expect_uniform(const std::string& name, const torch::Tensor& drawn, double low, double high) {
  const double std = (high - low) / std::sqrt(12.0);
  EXPECT_GE(drawn.min().item<double>(), low - 1e-6) << name;
  EXPECT_LE(drawn.max().item<double>(), high + 1e-6) << name;
  expect_normal(name, drawn, std, (low + high) / 2);
}

inline void expect_constant(const std::string& name, const torch::Tensor& drawn, double value) {
  EXPECT_TRUE((drawn == value).all().item<bool>()) << name;
}

}  // namespace based
