#include "bench/kernels/common/timing.cuh"
#include "bench/kernels/sampling/problems/sample.cuh"

namespace based::bench {
namespace {

void time_sample(Report& report, int64_t rows) {
  const SampleCase c{rows, 50304, 50, 0.95};
  const SampleArguments arguments(c, kernels::DType::bf16);
  report.time("sample " + std::to_string(rows) + "x" + std::to_string(c.vocab) + " top-k top-p bf16", rows * c.vocab * 2, 2,
              [&](int, cudaStream_t stream) { check(kernels::cuda::sample(arguments.p, kernels::on_stream(stream))); });
}

// The batches of step_layers.
void time_sample(Report& report) {
  for (const int64_t rows : {1, 16, 128}) time_sample(report, rows);
}

const DefineFamily<Report> kSample("sample", time_sample);

}  // namespace
}  // namespace based::bench
