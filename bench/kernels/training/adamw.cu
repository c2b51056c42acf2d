#include "bench/kernels/common/timing.cuh"
#include "bench/kernels/training/problems/adamw.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// The parameters of a 363M model: an embedding, matrices of two sizes, norms.
std::vector<int64_t> model_sizes() {
  std::vector<int64_t> counts{50304 * 1024};
  for (int layer = 0; layer < 24; ++layer) {
    for (int i = 0; i < 4; ++i) counts.push_back(1024 * 1024);
    for (int i = 0; i < 2; ++i) counts.push_back(1024), counts.push_back(4096 * 1024);
  }
  for (int i = 0; i < 9; ++i) counts.push_back(1024 * 1024);
  return counts;
}

void time_adamw(Report& report) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const AdamwParameters p(dtype, model_sizes(), {1e-3F, 0.5F, 1.0F}, true);
    const std::string name = "adamw 363M, gradients " + std::string(dtype == DType::bf16 ? "bf16" : "fp32");
    report.time(name, p.all * (26 + kernels::dtype_size(dtype)), 1,
                [&](int, cudaStream_t stream) { check(gpu::adamw(p.arguments(), on_stream(stream))); });
  }
}

const DefineFamily<Report> kAdamw("adamw", time_adamw);

}  // namespace
}  // namespace based::bench
