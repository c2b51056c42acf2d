#include <memory>

#include "bench/kernels/common/timing.cuh"
#include "bench/kernels/linear_attention/problems/linear_attention.cuh"

namespace based::bench {
namespace {

using kernels::on_stream;
namespace gpu = kernels::cuda;

// Sizes of the recall models in training.
void time(Report& report, int64_t batch, int64_t length, int32_t features, int32_t head_dim, bool single_tf32) {
  LinearAttentionShape shape{std::vector<int64_t>(batch, length), 1, features, head_dim, single_tf32};
  const int64_t narrow = batch * length * features * 4, wide = batch * length * head_dim * 4;
  std::vector<std::unique_ptr<LinearAttentionProblem>> problems;
  for (int i = 0; i < 2; ++i) problems.push_back(std::make_unique<LinearAttentionProblem>(shape, 80 + i));
  const std::string name = " B" + std::to_string(batch) + " N" + std::to_string(length) + " f" + std::to_string(features) + " d" +
                           std::to_string(head_dim) + (single_tf32 ? " tf32" : " fp32");
  report.time("linear_attention" + name, 2 * narrow + 2 * wide, 2,
              [&](int set, cudaStream_t stream) { check(gpu::linear_attention_forward(problems[set]->p.forward, on_stream(stream))); });
  report.time("linear_attention backward" + name, 4 * narrow + 4 * wide, 2, [&](int set, cudaStream_t stream) {
    check(gpu::linear_attention_backward(problems[set]->p, problems[set]->scratch.as(), on_stream(stream)));
  });
}

void time_linear_attention(Report& report) {
  for (const bool single_tf32 : {false, true}) {
    time(report, 256, 256, 64, 64, single_tf32);
    time(report, 256, 64, 64, 64, single_tf32);
    time(report, 256, 256, 128, 64, single_tf32);
    time(report, 256, 256, 128, 128, single_tf32);
    time(report, 64, 1024, 64, 64, single_tf32);
  }
}

const DefineFamily<Report> kLinearAttention("linear_attention", time_linear_attention);

}  // namespace
}  // namespace based::bench
