#include <memory>

#include "bench/cuda/cases.cuh"
#include "bench/cuda/problems/attention.cuh"

namespace based::bench {
namespace {

using kernels::Stream;
namespace gpu = kernels::cuda;

void time(Report& report, int64_t rows, int64_t length, int32_t head_dim, int64_t window) {
  const std::vector<int64_t> lengths(rows, length);
  const AttentionShape s{lengths, lengths, 16, 16, head_dim, window};
  const int64_t bytes = rows * length * 16 * head_dim * 2;
  std::vector<std::unique_ptr<AttentionProblem>> problems;
  for (int i = 0; i < 2; ++i) problems.push_back(std::make_unique<AttentionProblem>(s, 70 + i));
  const std::string name =
      " B" + std::to_string(rows) + " L" + std::to_string(length) + " d" + std::to_string(head_dim) + " w" + std::to_string(window);
  report.time("causal_attention" + name, 4 * bytes, 2, [&](int set, cudaStream_t stream) {
    check(gpu::causal_attention_forward(problems[set]->b.forward, problems[set]->scratch.as(), Stream{stream}));
  });
  report.time("causal_attention backward" + name, 8 * bytes, 2, [&](int set, cudaStream_t stream) {
    check(gpu::causal_attention_backward(problems[set]->b, problems[set]->scratch.as(), Stream{stream}));
  });
}

}  // namespace

void time_causal_attention(Report& report) {
  time(report, 16, 2048, 64, 0);
  time(report, 16, 2048, 64, 64);
  time(report, 16, 2048, 112, 0);
  time(report, 2, 16384, 64, 0);
}

}  // namespace based::bench
