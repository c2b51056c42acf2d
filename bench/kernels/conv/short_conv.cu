#include "based/kernels/conv/short_conv.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// x and gate are the halves of one tensor, and have biases.
void time_short_conv(Report& report, int64_t length, int64_t channels) {
  const int sets = working_sets(3 * length * channels * 2);
  const std::vector<Buffer> inputs = random_buffers(sets, length * 2 * channels, DType::bf16, 1);
  std::vector<Buffer> y;
  for (int i = 0; i < sets; ++i) y.emplace_back(length * channels * 2);
  const Buffer weight = random_buffer(channels * 3, DType::bf16, 0.5, 300), bias = random_buffer(3 * channels, DType::bf16, 0.5, 301),
               end = upload({0, length});
  report.time("short_conv " + std::to_string(length) + "x" + std::to_string(channels) + " taps 3 gated biased bf16",
              3 * length * channels * 2, sets, [&](int i, cudaStream_t stream) {
                kernels::ShortConv p;
                p.x = inputs[i].as(), p.gate = inputs[i].as<char>() + channels * 2, p.x_stride = p.gate_stride = 2 * channels;
                p.weight = weight.as(), p.bias = bias.as(), p.x_bias = bias.as<char>() + channels * 2,
                p.gate_bias = bias.as<char>() + channels * 4;
                p.y = y[i].as(), p.y_stride = p.channels = channels, p.row_start = end.as<int64_t>(), p.tokens = length, p.rows = 1;
                p.dtype = DType::bf16;
                check(gpu::short_conv_forward(p, on_stream(stream)));
              });
}

// Rows of 2048 tokens; x and gate are the halves of one tensor.
void time_short_conv_backward(Report& report, int32_t taps, DType dtype) {
  const int64_t rows = 16, tokens = rows * 2048, channels = 2048, count = tokens * channels, size = kernels::dtype_size(dtype);
  const int sets = 2;
  const std::vector<Buffer> inputs = random_buffers(sets, 2 * count, dtype, 1), g = random_buffers(sets, count, dtype, 100);
  std::vector<Buffer> grads;
  for (int i = 0; i < sets; ++i) grads.emplace_back(2 * count * size);
  std::vector<int64_t> row_starts;
  for (int64_t r = 0; r <= rows; ++r) row_starts.push_back(r * 2048);
  const Buffer weight = random_buffer(channels * taps, dtype, 0.5, 300), bias = random_buffer(channels, dtype, 0.5, 301),
               in_bias = random_buffer(2 * channels, dtype, 0.5, 302), starts = upload(row_starts);
  Buffer gw(channels * taps * 4), gb(channels * 4), sums(2 * channels * 4);
  const auto arguments = [&](int i) {
    kernels::ShortConvBackward b;
    b.forward = {inputs[i].as(),
                 inputs[i].as<char>() + channels * size,
                 weight.as(),
                 bias.as(),
                 nullptr,
                 nullptr,
                 starts.as<int64_t>(),
                 nullptr,
                 tokens,
                 rows,
                 channels,
                 2 * channels,
                 2 * channels,
                 channels,
                 taps,
                 true,
                 dtype};
    b.grad_y = g[i].as(), b.grad_x = grads[i].as(), b.grad_gate = grads[i].as<char>() + count * size;
    b.grad_weight = gw.as<float>(), b.grad_bias = gb.as<float>(), b.grad_x_stride = b.grad_gate_stride = channels;
    b.grad_sums = sums.as<float>();
    b.forward.x_bias = in_bias.as(), b.forward.gate_bias = in_bias.as<char>() + channels * size;
    return b;
  };
  Buffer scratch(gpu::short_conv_backward_scratch(arguments(0)));
  const std::string name = "short_conv backward 32768x2048 taps " + std::to_string(taps) + " gated biased" + type_name(dtype);
  report.time(name, 5 * count * size, sets,
              [&](int i, cudaStream_t stream) { check(gpu::short_conv_backward(arguments(i), scratch.as(), on_stream(stream))); });
}

void time_short_conv(Report& report) {
  for (const auto& [length, channels] : {std::pair<int64_t, int64_t>{kTrainedTokens, 2048}, {8192, 3584}, {100, 2048}})
    time_short_conv(report, length, channels);
}

void time_short_conv_backward(Report& report) {
  for (const int32_t taps : {3, 4}) time_short_conv_backward(report, taps, DType::bf16);
  time_short_conv_backward(report, 3, DType::f32);
}

const DefineFamily<Report> kShortConv("short_conv", time_short_conv);
const DefineFamily<Report> kShortConvBackward("short_conv_backward", time_short_conv_backward);

}  // namespace
}  // namespace based::bench
