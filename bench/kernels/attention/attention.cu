#include <memory>

#include "bench/kernels/attention/problems/attention.cuh"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

void time(Report& report, int64_t rows, int64_t length, const AttentionShape& shape) {
  AttentionShape s = shape;
  s.queries.assign(rows, length), s.keys = s.queries;
  const int64_t bytes = rows * length * s.heads * s.head_dim * kernels::dtype_size(s.dtype);
  std::vector<std::unique_ptr<AttentionProblem>> problems;
  for (int i = 0; i < 2; ++i) problems.push_back(std::make_unique<AttentionProblem>(s, 70 + i));
  const std::string name = " B" + std::to_string(rows) + " L" + std::to_string(length) + " d" + std::to_string(s.head_dim) + " w" +
                           std::to_string(s.window) + (s.dtype == DType::f32 ? s.single_tf32 ? " tf32" : " fp32" : "") +
                           (s.dropout ? " dropout" : "");
  report.time("causal_attention" + name, 4 * bytes, 2, [&](int set, cudaStream_t stream) {
    check(gpu::causal_attention_forward(problems[set]->b.forward, problems[set]->scratch.as(), on_stream(stream)));
  });
  report.time("causal_attention backward" + name, 8 * bytes, 2, [&](int set, cudaStream_t stream) {
    check(gpu::causal_attention_backward(problems[set]->b, problems[set]->scratch.as(), on_stream(stream)));
  });
}

void time_causal_attention(Report& report) {
  time(report, 16, 2048, {{}, {}, 16, 16, 64, 0});
  time(report, 16, 2048, {{}, {}, 16, 16, 64, 64});
  time(report, 16, 2048, {{}, {}, 16, 16, 112, 0});
  time(report, 2, 16384, {{}, {}, 16, 16, 64, 0});
  for (const bool single_tf32 : {false, true}) {
    time(report, 256, 256, {{}, {}, 1, 1, 128, 0, DType::f32, single_tf32});
    time(report, 256, 256, {{}, {}, 1, 1, 128, 64, DType::f32, single_tf32});
    time(report, 256, 256, {{}, {}, 1, 1, 64, 0, DType::f32, single_tf32});
  }
  time(report, 256, 256, {{}, {}, 1, 1, 128, 0, DType::f32, false, true});
}

const DefineFamily<Report> kCausalAttention("causal_attention", time_causal_attention);

}  // namespace
}  // namespace based::bench
