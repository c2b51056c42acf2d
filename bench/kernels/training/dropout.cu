#include "based/kernels/training/dropout.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

// The embeddings of a small model's batch.
void time_dropout(Report& report) {
  const int64_t rows = 65536, width = 128, count = rows * width;
  const int sets = working_sets(4 * count);
  const std::vector<Buffer> x = random_buffers(sets, count, kernels::DType::f32, 1);
  const Buffer step = upload({5}), y(4 * count);
  report.time("dropout 65536x128 fp32", 8 * count, sets, [&](int i, cudaStream_t stream) {
    check(kernels::cuda::dropout(
        {x[i].as(), y.as(), step.as<int64_t>(), count, 1, 2, kernels::dropout_threshold(0.1), 1 / 0.9F, kernels::DType::f32},
        kernels::on_stream(stream)));
  });
}

const DefineFamily<Report> kDropout("dropout", time_dropout);

}  // namespace
}  // namespace based::bench
