#include <set>

#include "based/kernels/embedding.h"
#include "bench/cuda/cases.cuh"
#include "bench/cuda/problems/embedding.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::Stream;
namespace gpu = kernels::cuda;

void time_embedding(Report& report, int64_t tokens, int64_t rows, int64_t width, DType dtype) {
  const int sets = 2;
  const std::vector<Buffer> grad = random_buffers(sets, tokens * width, dtype, 1), to = random_buffers(sets, rows * width, dtype, 10);
  const std::vector<int64_t> ids = embedding_ids(tokens, rows);
  const Buffer id = upload(ids);
  const auto arguments = [&](int i) {
    return kernels::EmbeddingBackward{grad[i].as(), id.as<int64_t>(), to[i].as(), tokens, rows, width, dtype};
  };
  const Buffer scratch(gpu::embedding_backward_scratch(arguments(0)));
  const auto used = static_cast<int64_t>(std::set<int64_t>(ids.begin(), ids.end()).size());
  report.time(
      "embedding backward " + std::to_string(tokens) + " of " + std::to_string(rows) + "x" + std::to_string(width) + type_name(dtype),
      (tokens + 2 * used) * width * kernels::dtype_size(dtype), sets,
      [&](int i, cudaStream_t stream) { check(gpu::embedding_backward(arguments(i), scratch.as(), Stream{stream})); });
}

}  // namespace

void time_embedding(Report& report) {
  time_embedding(report, kTrainedTokens, 50264, 1024, DType::bf16);
  time_embedding(report, 65536, 8192, 128, DType::f32);
}

}  // namespace based::bench
