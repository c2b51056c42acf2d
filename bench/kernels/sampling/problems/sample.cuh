// Problems of the sampling kernel.
#pragma once
#include "based/kernels/sampling/sampling.h"
#include "bench/kernels/common/problems/device_memory.cuh"

namespace based::bench {

struct SampleCase {
  int64_t rows, vocab, top_k;
  double top_p, temperature = 1, min_p = 0, penalty = 1;
};

// The options in memory that the kernel reads.
struct SampleArguments {
  Buffer logits, number, top_k, temperature, top_p, min_p, penalty, token, seen;
  kernels::Sample p;
  SampleArguments(const SampleCase& c, kernels::DType dtype)
      : logits(random_buffer(c.rows * c.vocab, dtype, 3, 1)),
        number(upload(numbers(c))),
        top_k(upload(std::vector<int64_t>(c.rows, c.top_k))),
        temperature(all(c, c.temperature)),
        top_p(all(c, c.top_p)),
        min_p(all(c, c.min_p)),
        penalty(all(c, c.penalty)),
        token(c.rows * 8),
        seen(zeros(c.rows * kernels::sample_seen_words(c.vocab) * 4)) {
    p.logits = logits.as(), p.token = token.as<int64_t>(), p.position = p.seed = number.as<int64_t>();
    p.temperature = temperature.as<float>(), p.top_k = top_k.as<int64_t>(), p.top_p = top_p.as<float>(), p.min_p = min_p.as<float>();
    p.penalty = penalty.as<float>(), p.seen = seen.as<uint32_t>();
    p.rows = c.rows, p.vocab = p.logits_stride = c.vocab, p.dtype = dtype;
  }
  static std::vector<int64_t> numbers(const SampleCase& c) {
    std::vector<int64_t> each(c.rows);
    for (int64_t row = 0; row < c.rows; ++row) each[row] = 50 + 7 * row;
    return each;
  }
  static Buffer all(const SampleCase& c, double value) { return upload_floats(std::vector<float>(c.rows, static_cast<float>(value))); }
};

}  // namespace based::bench
