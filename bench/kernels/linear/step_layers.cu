// The linear layer of few rows and the other small kernels of a decode step, at the sizes of the 1.4B model.
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/linear/linear.h"
#include "based/kernels/norm/rms_norm.h"
#include "based/kernels/pointwise/swiglu.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// Each call uses another weight, which is therefore read from memory, as in a decode step.
void time_linear(Report& report, int64_t rows, int64_t in, int64_t out, bool swiglu = false) {
  const int64_t bytes = in * out * 2;
  const int sets = working_sets(bytes);
  const std::vector<Buffer> weight = random_buffers(sets, in * out, DType::bf16, 1);
  const Buffer x = random_buffer(rows * in, DType::bf16, 1, 100), bias = random_buffer(out, DType::bf16, 1, 101), y(rows * out * 2);
  kernels::Linear p{x.as(), nullptr, bias.as(), y.as(), rows, in, out, in, in, out, DType::bf16, DType::bf16, false, true};
  if (swiglu) p.y_stride = out / 2;
  const std::string name = std::string(swiglu ? "linear_swiglu " : "linear ") + std::to_string(rows) + " x " + std::to_string(in) + " -> " +
                           std::to_string(out) + " bf16";
  if (swiglu ? !gpu::linear_swiglu_supports(p) : !gpu::linear_supports(p)) return;
  report.time(name, bytes, sets, [&](int i, cudaStream_t stream) {
    p.weight = weight[i].as();
    check(swiglu ? gpu::linear_swiglu(p, on_stream(stream)) : gpu::linear(p, on_stream(stream)));
  });
}

void time_pointwise(Report& report, int64_t rows, int64_t width) {
  const std::string at = std::to_string(rows) + "x" + std::to_string(width) + " bf16";
  Buffer residual = random_buffer(rows * width, DType::f32, 1, 1), y(rows * 2 * width * 2);
  const Buffer x = random_buffer(rows * 4 * width, DType::bf16, 1, 2), weight = random_buffer(width * 8, DType::bf16, 1, 3);
  report.time("rms_norm, residual added, " + at, rows * width * 12, 2, [&](int, cudaStream_t stream) {
    check(gpu::rms_norm_forward(
        {residual.as(), x.as(), residual.as(), weight.as(), y.as(), nullptr, rows, width, 1e-5F, DType::f32, DType::bf16},
        on_stream(stream)));
  });
  report.time("swiglu of twice " + at, rows * 2 * width * 6, 2, [&](int, cudaStream_t stream) {
    check(gpu::swiglu_forward({x.as(), y.as(), rows, 2 * width, DType::bf16}, on_stream(stream)));
  });
  Buffer state = random_buffer(rows * 2 * width * 2, DType::f32, 1, 4);
  kernels::ShortConv conv{};
  conv.x = x.as(), conv.gate = x.as<char>() + 4 * width, conv.weight = weight.as(), conv.bias = weight.as(), conv.y = y.as();
  conv.state = state.as<float>(), conv.tokens = conv.rows = rows, conv.channels = 2 * width;
  conv.x_stride = conv.gate_stride = 4 * width, conv.y_stride = 2 * width, conv.taps = 3, conv.silu = true, conv.dtype = DType::bf16;
  report.time("short_conv_step of twice " + at, rows * 2 * width * (3 * 2 + 2 * 2 * 4), 2,
              [&](int, cudaStream_t stream) { check(gpu::short_conv_step(conv, on_stream(stream))); });
}

void time_step_layers(Report& report) {
  struct Size {
    int64_t in, out;
  };
  for (const int64_t rows : {1, 16, 128}) {
    for (const Size& s :
         std::initializer_list<Size>{{1792, 7168}, {3584, 1792}, {1792, 1792}, {1792, 256}, {1024, 4096}, {2048, 1024}, {1792, 50304}})
      time_linear(report, rows, s.in, s.out);
    for (const int64_t width : {1024, 1792}) time_linear(report, rows, width, 4 * width, true);
    time_pointwise(report, rows, 1792);
  }
}

const DefineFamily<Report> kStepLayers("step_layers", time_step_layers);

}  // namespace
}  // namespace based::bench
