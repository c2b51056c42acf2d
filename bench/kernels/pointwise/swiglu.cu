#include "based/kernels/pointwise/swiglu.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

void time_swiglu(Report& report) {
  const int64_t tokens = kTrainedTokens, width = 1024, bytes = tokens * width * 2;
  const int sets = working_sets(bytes);
  const std::vector<Buffer> h = random_buffers(sets, tokens * 2 * width, kernels::DType::bf16, 100);
  std::vector<Buffer> y;
  for (int i = 0; i < sets; ++i) y.emplace_back(tokens * width * 2);
  report.time("swiglu 32768x1024 bf16", 3 * bytes, sets, [&](int i, cudaStream_t stream) {
    check(kernels::cuda::swiglu_forward({h[i].as(), y[i].as(), tokens, width, kernels::DType::bf16}, kernels::on_stream(stream)));
  });
}

const DefineFamily<Report> kSwiglu("swiglu", time_swiglu);

}  // namespace
}  // namespace based::bench
