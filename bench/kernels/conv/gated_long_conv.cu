#include "based/kernels/conv/gated_long_conv.h"

#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// q, k and v are columns of one projection's output, as in Hyena.
void time(Report& report, int64_t rows, int64_t length, int64_t channels, int32_t head_dim, bool single_tf32) {
  const int64_t tokens = rows * length, heads = channels / head_dim;
  const Buffer in = random_buffer(3 * tokens * channels, DType::f32, 1, 1), g = random_buffer(tokens * channels, DType::f32, 1, 2),
               filter = random_buffer(heads * length, DType::f32, 1, 3), y(tokens * channels * 4), of_in(3 * tokens * channels * 4),
               of_filter(heads * length * 4);
  kernels::GatedLongConvBackward b;
  kernels::GatedLongConv& p = b.forward;
  p.q = in.as<float>(), p.k = p.q + channels, p.v = p.k + channels, p.filter = filter.as<float>(), p.y = y.as<float>();
  p.q_stride = p.k_stride = p.v_stride = 3 * channels, p.y_stride = channels;
  p.rows = rows, p.length = length, p.channels = channels, p.taps = length, p.head_dim = head_dim, p.single_tf32 = single_tf32;
  b.grad_y = g.as<float>(), b.grad_y_stride = channels, b.grad_filter = of_filter.as<float>();
  b.grad_q = of_in.as<float>(), b.grad_k = b.grad_q + channels, b.grad_v = b.grad_k + channels;
  b.grad_q_stride = b.grad_k_stride = b.grad_v_stride = 3 * channels;
  const Buffer scratch(gpu::gated_long_conv_backward_scratch(b));
  const std::string shape = std::to_string(rows) + "x" + std::to_string(length) + " channels " + std::to_string(channels) + " head " +
                            std::to_string(head_dim) + (single_tf32 ? " tf32" : " fp32");
  report.time("gated_long_conv " + shape, 4 * tokens * channels * 4, 1,
              [&](int, cudaStream_t stream) { check(gpu::gated_long_conv_forward(p, on_stream(stream))); });
  report.time("gated_long_conv backward " + shape, 7 * tokens * channels * 4, 1,
              [&](int, cudaStream_t stream) { check(gpu::gated_long_conv_backward(b, scratch.as(), on_stream(stream))); });
}

// Without q and v and with few taps, as in H3's shift of its keys.
void time_plain(Report& report, int64_t rows, int64_t length, int64_t channels, int64_t taps) {
  const int64_t tokens = rows * length, bytes = tokens * channels * 4;
  const Buffer x = random_buffer(tokens * channels, DType::f32, 1, 1), g = random_buffer(tokens * channels, DType::f32, 1, 2),
               filter = random_buffer(channels * taps, DType::f32, 1, 3), y(bytes), of_x(bytes), of_filter(channels * taps * 4);
  kernels::GatedLongConvBackward b;
  kernels::GatedLongConv& p = b.forward;
  p.k = x.as<float>(), p.filter = filter.as<float>(), p.y = y.as<float>(), p.k_stride = p.y_stride = channels;
  p.rows = rows, p.length = length, p.channels = channels, p.taps = taps, p.single_tf32 = true;
  b.grad_y = g.as<float>(), b.grad_k = of_x.as<float>(), b.grad_filter = of_filter.as<float>();
  b.grad_y_stride = b.grad_k_stride = channels;
  const Buffer scratch(gpu::gated_long_conv_backward_scratch(b));
  const std::string shape = std::to_string(rows) + "x" + std::to_string(length) + " channels " + std::to_string(channels) + " taps " +
                            std::to_string(taps) + " plain tf32";
  report.time("gated_long_conv " + shape, 2 * bytes, 1,
              [&](int, cudaStream_t stream) { check(gpu::gated_long_conv_forward(p, on_stream(stream))); });
  report.time("gated_long_conv backward " + shape, 3 * bytes, 1,
              [&](int, cudaStream_t stream) { check(gpu::gated_long_conv_backward(b, scratch.as(), on_stream(stream))); });
}

void time_gated_long_conv(Report& report) {
  for (const int32_t head_dim : {1, 2})
    for (const bool single_tf32 : {true, false}) {
      for (const int64_t channels : {64, 256}) time(report, 256, 64, channels, head_dim, single_tf32);
      time(report, 256, 256, 256, head_dim, single_tf32);
      time(report, 16, 2048, 256, head_dim, single_tf32);
    }
  time(report, 32, 2048, 384, 64, true);  // H3 with heads of 64 channels
  for (const int64_t length : {64, 256}) time_plain(report, 256, length, 256, 64);
}

const DefineFamily<Report> kGatedLongConv("gated_long_conv", time_gated_long_conv);

}  // namespace
}  // namespace based::bench
