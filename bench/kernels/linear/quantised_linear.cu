// The int8 linear layer of few rows beside the bf16 one, at the sizes of the 1.4B model.
#include "based/kernels/linear/quantised_linear.h"

#include "based/kernels/linear/linear.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// Each call uses another weight, which is therefore read from memory, as in a decode step.
void time_layer(Report& report, int64_t rows, int64_t in, int64_t out, bool swiglu) {
  const std::string name =
      std::string(swiglu ? "swiglu " : "") + std::to_string(rows) + " x " + std::to_string(in) + " -> " + std::to_string(out);
  const int64_t weights = in * out, y_stride = swiglu ? out / 2 : out;
  const Buffer x = random_buffer(rows * in, DType::bf16, 1, 100), bias = random_buffer(out, DType::bf16, 1, 101), y(rows * out * 2);
  const int sets = working_sets(weights);
  const std::vector<Buffer> memory = random_buffers(2 * sets, weights / 2, DType::bf16, 1);  // any bytes are int8 weights
  const Buffer scale = random_buffer(out, DType::f32, 0.01, 102);
  kernels::QuantisedLinear p;
  p.x = x.as(), p.scale = scale.as(), p.bias = bias.as(), p.y = y.as();
  p.rows = rows, p.in = p.x_stride = in, p.out = out, p.y_stride = y_stride;
  p.dtype = DType::bf16, p.gated = swiglu, p.weight_is_constant = true;
  report.time("quantised_linear " + name + " int8", weights, 2 * sets, [&](int i, cudaStream_t stream) {
    p.weight = memory[i].as();
    check(gpu::quantised_linear(p, on_stream(stream)));
  });
  const std::vector<Buffer> full = random_buffers(sets, weights, DType::bf16, 2);
  kernels::Linear q{x.as(), nullptr, bias.as(), y.as(), rows, in, out, in, in, y_stride, DType::bf16, DType::bf16, false, true};
  if (swiglu ? !gpu::linear_swiglu_supports(q) : !gpu::linear_supports(q)) return;
  report.time("linear " + name + " bf16", 2 * weights, sets, [&](int i, cudaStream_t stream) {
    q.weight = full[i].as();
    check(swiglu ? gpu::linear_swiglu(q, on_stream(stream)) : gpu::linear(q, on_stream(stream)));
  });
}

void time_quantised_linear(Report& report) {
  struct Size {
    int64_t in, out;
  };
  for (const int64_t rows : {1, 4, 16, 64}) {
    for (const Size& s : {Size{1792, 7168}, Size{3584, 1792}, Size{1792, 1792}, Size{1792, 256}})
      time_layer(report, rows, s.in, s.out, false);
    time_layer(report, rows, 1792, 7168, true);
  }
}

const DefineFamily<Report> kQuantisedLinear("quantised_linear", time_quantised_linear);

}  // namespace
}  // namespace based::bench
