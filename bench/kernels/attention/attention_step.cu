#include <memory>

#include "bench/kernels/attention/problems/attention_step.cuh"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// The problems are independent, like the layers of a decode step. With `settled`, a call loads its rings while the previous call still
// runs.
void time(Report& report, int64_t rows, bool settled, const std::string& headline, int32_t head_dim = 64, int64_t window = 64) {
  const AttentionStepShape s{rows, window, 16, 16, head_dim, DType::bf16, DType::bf16, {1000, 2000}, settled};
  const int64_t bytes = rows * 16 * head_dim * (2 * window + 6) * 2;
  std::vector<std::unique_ptr<AttentionStepProblem>> problems;
  for (int i = 0; i < working_sets(bytes); ++i) problems.push_back(std::make_unique<AttentionStepProblem>(s, 50 + i));
  const double ms = median_ms(static_cast<int>(problems.size()), [&](int set, cudaStream_t stream) {
    check(gpu::causal_attention_step(problems[set]->p, on_stream(stream)));
  });
  report.add({headline,
              "window_decode B" + std::to_string(rows) + " w" + std::to_string(window) + " d" + std::to_string(head_dim) +
                  (settled ? " settled" : ""),
              ms, "ms", static_cast<double>(bytes) / bytes_per_ms()});
}

void time_causal_attention_step(Report& report) {
  for (const bool settled : {false, true}) {
    time(report, 1, settled, "");
    time(report, 16, settled, "");
    time(report, 128, settled, settled ? "window_decode_b128" : "");
    time(report, 128, settled, "", 112);
    time(report, 128, settled, "", 64, 1024);
  }
}

const DefineFamily<Report> kCausalAttentionStep("causal_attention_step", time_causal_attention_step);

}  // namespace
}  // namespace based::bench
