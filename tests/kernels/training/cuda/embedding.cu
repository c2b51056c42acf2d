#include <algorithm>

#include "based/kernels/training/dropout.h"
#include "based/kernels/training/embedding.h"
#include "bench/kernels/training/problems/embedding.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

void verify_embedding(Report& report, int64_t tokens, int64_t rows, int64_t width, DType dtype) {
  const std::vector<int64_t> ids = embedding_ids(tokens, rows);
  const Buffer grad = random_buffer(tokens * width, dtype, 1, 1), id = upload(ids), to = random_buffer(rows * width, dtype, 1, 2);
  std::vector<double> exact = download(to.as(), dtype, rows * width);
  const std::vector<double> g = download(grad.as(), dtype, tokens * width);
  for (int64_t i = 0; i < tokens * width; ++i) exact[ids[i / width] * width + i % width] += g[i];
  const kernels::EmbeddingBackward p{grad.as(), id.as<int64_t>(), to.as(), tokens, rows, width, dtype};
  const Buffer scratch(gpu::embedding_backward_scratch(p));
  check(gpu::embedding_backward(p, scratch.as(), {}));
  report.expect(
      "embedding backward " + std::to_string(tokens) + " of " + std::to_string(rows) + "x" + std::to_string(width) + type_name(dtype),
      relative_error(download(to.as(), dtype, rows * width), exact), allowed(dtype));
}

void verify_embedding_rows(Report& report, int64_t tokens, int64_t width, double p, DType dtype) {
  const int64_t vocab = 300;
  std::vector<int64_t> ids = embedding_ids(tokens, vocab);
  const Buffer table = random_buffer(vocab * width, dtype, 1, 1), id = upload(ids), step = upload({12345678901}),
               y(tokens * width * kernels::dtype_size(dtype));
  check(gpu::embedding_rows({table.as(), id.as<int64_t>(), y.as(), step.as<int64_t>(), tokens, vocab, width, -7, 3,
                             kernels::dropout_threshold(p), static_cast<float>(1 / (1 - p)), dtype},
                            {}));
  const std::vector<double> all = download(table.as(), dtype, vocab * width);
  const uint64_t key = kernels::dropout_key(static_cast<uint64_t>(-7), 12345678901, 3);
  std::vector<double> wanted;
  for (int64_t i = 0; i < tokens * width; ++i) {
    const bool dropped = kernels::is_dropped(key, static_cast<uint64_t>(i), kernels::dropout_threshold(p));
    wanted.push_back(dropped ? 0 : all[ids[i / width] * width + i % width] / (1 - p));
  }
  report.expect("embedding rows " + std::to_string(tokens) + "x" + std::to_string(width) + (p > 0 ? " dropout" : "") + type_name(dtype),
                relative_error(download(y.as(), dtype, tokens * width), wanted), p > 0 ? allowed(dtype) : 0);
}

void verify_embedding_step(Report& report, int64_t rows, int64_t width, DType dtype) {
  const int64_t vocab = 300;
  std::vector<int64_t> ids, slots, exact(rows + 2), before;
  for (int64_t s = 0; s < rows + 2; ++s) exact[s] = 3 * s + 5;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 1 ? -1 : r * 37 % vocab), slots.push_back((r + 1) % (rows + 2));
  const Buffer table = random_buffer(vocab * width, dtype, 1, 1), id = upload(ids), slot = upload(slots), seen = upload(exact),
               position = upload(slots), y(rows * width * 4);
  check(gpu::embedding_step({table.as(), id.as<int64_t>(), slot.as<int64_t>(), seen.as<int64_t>(), position.as<int64_t>(), y.as<float>(),
                             rows, vocab, width, dtype},
                            {}));
  const std::vector<double> all = download(table.as(), dtype, vocab * width);
  std::vector<double> wanted;
  for (int64_t r = 0; r < rows; ++r) {
    const auto from = all.begin() + std::max<int64_t>(ids[r], 0) * width;
    wanted.insert(wanted.end(), from, from + width), before.push_back(exact[slots[r]]++);
  }
  std::vector<int64_t> found(exact.size()), of_rows(before.size());
  check(cudaMemcpy(found.data(), seen.as(), found.size() * 8, cudaMemcpyDeviceToHost), "tokens seen");
  check(cudaMemcpy(of_rows.data(), position.as(), of_rows.size() * 8, cudaMemcpyDeviceToHost), "positions");
  const std::string name = "embedding_step " + std::to_string(rows) + "x" + std::to_string(width);
  report.expect(name, found == exact && of_rows == before ? relative_error(download(y.as(), DType::f32, rows * width), wanted) : 1, 0);
}

void verify_embedding(Report& report) {
  const DType bf = DType::bf16, fp = DType::f32;
  verify_embedding(report, 1, 3, 8, fp), verify_embedding(report, 33, 5, 64, bf), verify_embedding(report, 5000, 300, 1032, bf);
  verify_embedding(report, 1000, 70000, 20, fp), verify_embedding(report, 5000, 300, 128, fp);
  for (const DType dtype : {fp, bf})
    for (const double p : {0.0, 0.2}) {
      verify_embedding_rows(report, 1, 8, p, dtype), verify_embedding_rows(report, 999, 48, p, dtype);
      verify_embedding_rows(report, 33, 7, p, dtype), verify_embedding_rows(report, 9, 4104, p, dtype);
    }
}

void verify_embedding_step(Report& report) {
  verify_embedding_step(report, 1, 1792, DType::bf16), verify_embedding_step(report, 128, 1024, DType::bf16);
  verify_embedding_step(report, 3, 7, DType::bf16), verify_embedding_step(report, 5, 20, DType::f32);
}

const DefineFamily<Report> kEmbedding("embedding", verify_embedding);
const DefineFamily<Report> kEmbeddingStep("embedding_step", verify_embedding_step);

}  // namespace
}  // namespace based::tests
