#include "bench/cuda/cases.cuh"
#include "bench/cuda/problems/sample.cuh"

namespace based::bench {

void time_sample(Report& report, int64_t rows) {
  const SampleCase c{rows, 50304, 50, 0.95};
  const SampleArguments arguments(c, kernels::DType::bf16);
  report.time("sample " + std::to_string(rows) + "x" + std::to_string(c.vocab) + " top-k top-p bf16", rows * c.vocab * 2, 2,
              [&](int, cudaStream_t stream) { check(kernels::cuda::sample(arguments.p, kernels::Stream{stream})); });
}

}  // namespace based::bench
