// The tensors of an AdamW update.
#pragma once
#include <numeric>

#include "based/kernels/training/adamw.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

// All tensors of a kind are stored one after another in one buffer.
struct AdamwParameters {
  kernels::DType gradient_dtype;
  std::vector<int64_t> counts;
  std::vector<float> step_values;  // one for each tensor
  int64_t all;
  Buffer master, first, second, gradient, rounded, steps, numbers;  // numbers: rate, scale, update_enabled
  std::vector<kernels::AdamwTensor> tensors;

  AdamwParameters(kernels::DType dtype, std::vector<int64_t> sizes, const std::vector<float>& settings, bool start_at_zero)
      : gradient_dtype(dtype), counts(std::move(sizes)), all(std::accumulate(counts.begin(), counts.end(), int64_t{0})) {
    master = random_buffer(all, kernels::DType::f32, 1, 1), gradient = random_buffer(all, dtype, 0.3, 2);
    first = start_at_zero ? zeros(all * 4) : random_buffer(all, kernels::DType::f32, 0.1, 3);
    second = zeros(all * 4);
    if (!start_at_zero) {  // squares, since second moments are positive
      std::vector<float> squares(all);
      const std::vector<double> from = download(gradient.as(), dtype, all);
      for (int64_t i = 0; i < all; ++i) squares[i] = static_cast<float>(from[i] * from[i] + 0.01);
      second = upload_floats(squares);
    }
    rounded = Buffer(all * 2);
    for (size_t i = 0; i < counts.size(); ++i) step_values.push_back(static_cast<float>(i % 9 + 1));
    steps = upload_floats(step_values), numbers = upload_floats(settings);
    int64_t at = 0;
    for (size_t i = 0; i < counts.size(); at += counts[i++])
      tensors.push_back({master.as<float>() + at, rounded.as<char>() + at * 2, gradient.as<char>() + at * kernels::dtype_size(dtype),
                         first.as<float>() + at, second.as<float>() + at, steps.as<float>() + i, counts[i], dtype});
  }

  kernels::Adamw arguments() const {
    const auto* number = numbers.as<float>();
    return {tensors.data(), static_cast<int64_t>(tensors.size()), number, number + 1, number + 2, 0.9F, 0.95F, 1e-8F, 0.1F};
  }
};

}  // namespace based::bench
