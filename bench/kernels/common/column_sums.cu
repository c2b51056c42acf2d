#include "based/kernels/common/column_sums.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

void time_column_sums(Report& report, int64_t rows, int64_t columns) {
  const int sets = working_sets(rows * columns * 2);
  const std::vector<Buffer> x = random_buffers(sets, rows * columns, DType::bf16, 1);
  const Buffer sums(columns * 2), scratch(gpu::column_sums_scratch({nullptr, nullptr, rows, columns, columns, DType::bf16}));
  report.time("column_sums " + std::to_string(rows) + "x" + std::to_string(columns) + " bf16", rows * columns * 2, sets,
              [&](int i, cudaStream_t stream) {
                check(gpu::column_sums({x[i].as(), sums.as(), rows, columns, columns, DType::bf16}, scratch.as(), on_stream(stream)));
              });
}

void time_column_sums(Report& report) {
  for (const int64_t columns : {1024, 4096}) time_column_sums(report, kTrainedTokens, columns);
}

const DefineFamily<Report> kColumnSums("column_sums", time_column_sums);

}  // namespace
}  // namespace based::bench
