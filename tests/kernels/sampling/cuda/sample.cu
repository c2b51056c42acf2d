// Compares the kernel's tokens with a draw in double precision.
#include <algorithm>
#include <cmath>

#include "bench/kernels/sampling/problems/sample.cuh"
#include "tests/kernels/common/cuda/testing.cuh"
#include "tests/kernels/sampling/sample_reference.h"

namespace based::tests {
namespace {

using kernels::DType;

// The logits of one row after the penalty, in double precision.
int64_t exact_draw(const SampleCase& c, const std::vector<double>& logits, int64_t number) {
  std::vector<double> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double top = sorted.front();
  if (c.temperature == 0) return std::find(logits.begin(), logits.end(), top) - logits.begin();
  double least = c.top_k > 0 && c.top_k < c.vocab ? sorted[c.top_k - 1] : sorted.back();
  if (c.min_p > 0) least = std::max(least, top + c.temperature * std::log(c.min_p));
  double whole = 0, sum = 0;
  for (const double x : sorted) whole += x >= least ? std::exp((x - top) / c.temperature) : 0;
  for (size_t i = 0; c.top_p < 1 && sorted[i] >= least; ++i) {
    sum += std::exp((sorted[i] - top) / c.temperature);
    if (sum >= c.top_p * whole) least = sorted[i];
  }
  int64_t chosen = -1;
  double best = -INFINITY;
  for (int64_t w = 0; w < c.vocab; ++w) {
    if (logits[w] < least) continue;
    const double score = (logits[w] - top) / c.temperature + static_cast<double>(exact_gumbel(number, number, w));
    if (score > best) best = score, chosen = w;
  }
  return chosen;
}

// Sums or scores that are nearly equal may compare differently in double precision.
void verify_case(Report& report, const SampleCase& c, DType dtype) {
  const SampleArguments arguments(c, dtype);
  std::vector<double> all = download(arguments.logits.as(), dtype, c.rows * c.vocab);
  const std::vector<int64_t> numbers = SampleArguments::numbers(c);
  const int64_t words = kernels::sample_seen_words(c.vocab);
  const std::vector<uint32_t> marks(c.rows * words, 0x5a5a5a5aU);
  check(cudaMemcpy(arguments.seen.as(), marks.data(), marks.size() * 4, cudaMemcpyHostToDevice), "marks");
  check(kernels::cuda::sample(arguments.p, {}));
  std::vector<int64_t> token(c.rows);
  check(cudaMemcpy(token.data(), arguments.token.as(), token.size() * 8, cudaMemcpyDeviceToHost), "tokens");
  int64_t others = 0;
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<double> logits(all.begin() + row * c.vocab, all.begin() + (row + 1) * c.vocab);
    for (int64_t w = 0; w < c.vocab && c.penalty != 1; ++w) {
      if (kernels::sample_is_seen(marks.data(), w))
        logits[w] = kernels::sample_penalised(static_cast<float>(logits[w]), static_cast<float>(c.penalty));
    }
    others += token[row] != exact_draw(c, logits, numbers[row]);
  }
  report.expect("sample " + std::to_string(c.vocab) + " top-k " + std::to_string(c.top_k) + " top-p " + std::to_string(c.top_p) +
                    (dtype == DType::bf16 ? " bf16" : " fp32") + ": other tokens",
                static_cast<double>(others) / static_cast<double>(c.rows), 0.04);
}

void verify_sample(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const SampleCase& c : {SampleCase{50, 50304, 50, 0.95}, SampleCase{2000, 50257, 0, 1, 1e-5}, SampleCase{50, 50257, 0, 1, 0},
                                SampleCase{50, 50304, 300, 0.9, 0.8}, SampleCase{50, 1001, 0, 0.8, 1.3}, SampleCase{50, 1001, 1000, 1},
                                SampleCase{50, 37, 5, 1, 1, 0.05}, SampleCase{50, 5003, 100, 0.8, 0.8, 0.02, 1.2},
                                SampleCase{50, 150000, 40, 0.9, 1, 0, 1.1}, SampleCase{50, 3000, 2000, 0.5}, SampleCase{50, 50304, 64, 1},
                                SampleCase{50, 50304, 65, 1}, SampleCase{50, 50304, 1, 0.5}, SampleCase{50, 200, 60, 0.9}})
      verify_case(report, c, dtype);
}

const DefineFamily<Report> kSample("sample", verify_sample);

}  // namespace
}  // namespace based::tests
