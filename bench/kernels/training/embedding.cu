#include <set>

#include "based/kernels/training/dropout.h"
#include "based/kernels/training/embedding.h"
#include "bench/kernels/common/timing.cuh"
#include "bench/kernels/training/problems/embedding.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
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
      [&](int i, cudaStream_t stream) { check(gpu::embedding_backward(arguments(i), scratch.as(), on_stream(stream))); });
}

// The rows of a small model's batch.
void time_embedding_rows(Report& report, double p) {
  const int64_t tokens = 65536, vocab = 8192, width = 128, bytes = 4 * tokens * width;
  const int sets = working_sets(bytes);
  const Buffer table = random_buffer(vocab * width, DType::f32, 1, 1), id = upload(embedding_ids(tokens, vocab)), step = upload({5});
  std::vector<Buffer> y;
  for (int i = 0; i < sets; ++i) y.emplace_back(bytes);
  report.time(std::string("embedding rows 65536 of 8192x128 fp32") + (p > 0 ? " dropout" : ""), bytes, sets,
              [&](int i, cudaStream_t stream) {
                check(gpu::embedding_rows({table.as(), id.as<int64_t>(), y[i].as(), step.as<int64_t>(), tokens, vocab, width, 1, 2,
                                           kernels::dropout_threshold(p), static_cast<float>(1 / (1 - p)), DType::f32},
                                          on_stream(stream)));
              });
}

void time_embedding(Report& report) {
  time_embedding_rows(report, 0), time_embedding_rows(report, 0.1);
  time_embedding(report, kTrainedTokens, 50264, 1024, DType::bf16);
  time_embedding(report, 65536, 8192, 128, DType::f32);
}

const DefineFamily<Report> kEmbedding("embedding", time_embedding);

}  // namespace
}  // namespace based::bench
