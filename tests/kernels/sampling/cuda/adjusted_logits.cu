// Compares the kernel with the formula in double precision.
#include "based/kernels/sampling/adjusted_logits.h"

#include <cmath>

#include "bench/kernels/common/problems/device_memory.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;

template <class T>
Buffer copy_of(const std::vector<T>& values) {
  Buffer to(static_cast<int64_t>(values.size() * sizeof(T)));
  check(cudaMemcpy(to.as(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return to;
}

void verify_case(Report& report, int64_t rows, int64_t vocab, DType dtype) {
  const Buffer logits = random_buffer(rows * vocab, dtype, 3, 1), bias = random_buffer(rows * vocab, DType::f32, 5, 2),
               adjusted(rows * vocab * 4);
  std::vector<int32_t> counts(rows * vocab);
  std::vector<uint32_t> seen(rows * kernels::sample_seen_words(vocab), 0x5a5a5a5aU);
  std::vector<float> presence(rows), frequency(rows), penalty(rows);
  for (int64_t at = 0; at < rows * vocab; ++at) counts[at] = static_cast<int32_t>(at % 4);
  for (int64_t row = 0; row < rows; ++row) {
    presence[row] = 0.5F * static_cast<float>(row), frequency[row] = 1 - presence[row], penalty[row] = 1 + 0.25F * static_cast<float>(row);
  }
  const Buffer counts_there = copy_of(counts), seen_there = copy_of(seen), presence_there = copy_of(presence),
               frequency_there = copy_of(frequency), penalty_there = copy_of(penalty);
  kernels::AdjustedLogits p;
  p.logits = logits.as(), p.adjusted = adjusted.as<float>(), p.bias = bias.as<float>(), p.counts = counts_there.as<int32_t>();
  p.presence = presence_there.as<float>(), p.frequency = frequency_there.as<float>(), p.penalty = penalty_there.as<float>();
  p.seen = seen_there.as<uint32_t>(), p.rows = rows, p.vocab = p.logits_stride = vocab, p.dtype = dtype;
  check(kernels::cuda::adjusted_logits(p, {}));
  const std::vector<double> given = download(logits.as(), dtype, rows * vocab), added = download(bias.as(), DType::f32, rows * vocab),
                            found = download(adjusted.as(), DType::f32, rows * vocab);
  double most = 0;
  for (int64_t at = 0; at < rows * vocab; ++at) {
    const int64_t row = at / vocab;
    double x = given[at] + added[at];
    if (kernels::sample_is_seen(seen.data() + row * kernels::sample_seen_words(vocab), at % vocab))
      x = x > 0 ? x / penalty[row] : x * penalty[row];
    if (counts[at] > 0) x -= static_cast<double>(frequency[row]) * counts[at] + presence[row];
    most = std::max(most, std::fabs(found[at] - x));
  }
  report.expect("adjusted logits " + std::to_string(vocab) + (dtype == DType::bf16 ? " bf16" : " fp32"), most, 1e-5);
}

void verify_adjusted_logits(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int64_t vocab : {1, 37, 50257}) verify_case(report, 3, vocab, dtype);
}

const DefineFamily<Report> kAdjustedLogits("adjusted_logits", verify_adjusted_logits);

}  // namespace
}  // namespace based::tests
