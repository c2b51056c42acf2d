#include "based/kernels/norm/rms_norm.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// Times the norm of an fp32 residual stream, alone and within the stream, whose gradient is read and written in bf16.
void time_rms_norm_backward(Report& report, int64_t rows, int64_t width) {
  const int sets = 2;
  const int64_t count = rows * width;
  const std::vector<Buffer> x = random_buffers(sets, count, DType::f32, 1), g = random_buffers(sets, count, DType::bf16, 100),
                            grad_x = random_buffers(sets, count, DType::f32, 200), grad_sum = random_buffers(sets, count, DType::bf16, 300);
  const Buffer weight = random_buffer(width, DType::bf16, 1, 400), inverse_rms = random_buffer(rows, DType::f32, 1, 401);
  Buffer grad_weight(width * 4);
  for (const bool residual : {false, true}) {
    kernels::RmsNormBackward b;
    b.forward.weight = weight.as(), b.forward.inverse_rms = inverse_rms.as<float>();
    b.forward.rows = rows, b.forward.width = width, b.forward.dtype = DType::bf16;
    b.grad_weight = grad_weight.as<float>();
    const Buffer scratch(gpu::rms_norm_backward_scratch(b));
    const std::string name = "rms_norm backward " + std::to_string(rows) + "x" + std::to_string(width) + (residual ? " residual" : "");
    report.time(name, count * 10, sets, [&](int i, cudaStream_t stream) {
      b.forward.x = x[i].as(), b.grad_y = g[i].as();
      if (residual) {
        b.grad_sum = grad_sum[i].as(), b.grad_add = grad_x[i].as();
      } else {
        b.grad_x = grad_x[i].as();
      }
      check(gpu::rms_norm_backward(b, scratch.as(), on_stream(stream)));
    });
  }
}

void time_rms_norm(Report& report) {
  const int64_t tokens = kTrainedTokens, width = 1024, bytes = tokens * width * 2;
  const int sets = working_sets(bytes);
  const std::vector<Buffer> x = random_buffers(sets, tokens * width, DType::bf16, 1);
  std::vector<Buffer> y;
  for (int i = 0; i < sets; ++i) y.emplace_back(tokens * width * 2);
  const Buffer weight = random_buffer(width, DType::bf16, 1, 300);
  report.time("rms_norm 32768x1024 bf16", 2 * bytes, sets, [&](int i, cudaStream_t stream) {
    check(gpu::rms_norm_forward(
        {x[i].as(), nullptr, nullptr, weight.as(), y[i].as(), nullptr, tokens, width, 1e-5F, DType::bf16, DType::bf16}, on_stream(stream)));
  });
}

void time_rms_norm_backward(Report& report) {
  for (const int64_t width : {1024, 1792}) time_rms_norm_backward(report, kTrainedTokens, width);
}

const DefineFamily<Report> kRmsNorm("rms_norm", time_rms_norm);
const DefineFamily<Report> kRmsNormBackward("rms_norm_backward", time_rms_norm_backward);

}  // namespace
}  // namespace based::bench
