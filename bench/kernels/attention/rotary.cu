#include "based/kernels/attention/rotary.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// Rotates queries and keys in place, in the output of a joint projection with 16 heads of 64.
void time_rotary(Report& report, int32_t dim) {
  const int64_t tokens = 32768, columns = 3 * 1024;
  const std::vector<Buffer> qkv = random_buffers(2, tokens * columns, DType::bf16, 1);
  std::vector<int64_t> positions(tokens);
  for (int64_t t = 0; t < tokens; ++t) positions[t] = t % 2048;
  const Buffer position = upload(positions);
  report.time("rotary 32768x32x64 dim " + std::to_string(dim) + " in place bf16", tokens * 32 * dim * 4, 2,
              [&](int i, cudaStream_t stream) {
                kernels::Rotary p;
                p.x = p.y = qkv[i].as(), p.position = position.as<int64_t>(), p.tokens = tokens, p.x_stride = p.y_stride = columns;
                p.heads = 32, p.head_dim = 64, p.dim = dim, p.dtype = DType::bf16;
                check(gpu::rotary(p, on_stream(stream)));
              });
}

void time_rotary(Report& report) {
  for (const int32_t dim : {32, 64}) time_rotary(report, dim);
}

const DefineFamily<Report> kRotary("rotary", time_rotary);

}  // namespace
}  // namespace based::bench
