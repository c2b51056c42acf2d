#include "based/kernels/norm/layer_norm.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

// Times the norm of a small model's residual stream, which also stores the sum.
void time_layer_norm(Report& report) {
  const int64_t rows = 65536, width = 128, count = rows * width;
  const int sets = 2;
  const kernels::DType dtype = kernels::DType::f32;
  const std::vector<Buffer> x = random_buffers(sets, count, dtype, 1), add = random_buffers(sets, count, dtype, 100),
                            g = random_buffers(sets, count, dtype, 200);
  const Buffer weight = random_buffer(width, dtype, 1, 300), bias = random_buffer(width, dtype, 1, 301);
  const Buffer sum(count * 4), y(count * 4), mean(rows * 4), inverse_std(rows * 4), grad_weight(width * 4), grad_bias(width * 4);
  const auto norm_of = [&](int i) {
    kernels::LayerNorm p;
    p.x = x[i].as(), p.add = add[i].as(), p.sum = sum.as(), p.weight = weight.as(), p.bias = bias.as(), p.y = y.as();
    p.mean = mean.as<float>(), p.inverse_std = inverse_std.as<float>(), p.rows = rows, p.width = width;
    return p;
  };
  const std::string size = "65536x128 fp32";
  report.time("layer_norm " + size, 16 * count, sets,
              [&](int i, cudaStream_t stream) { check(kernels::cuda::layer_norm_forward(norm_of(i), kernels::on_stream(stream))); });
  kernels::LayerNormBackward b;
  b.forward = norm_of(0);
  const Buffer scratch(kernels::cuda::layer_norm_backward_scratch(b));
  report.time("layer_norm backward " + size, 16 * count, sets, [&](int i, cudaStream_t stream) {
    kernels::LayerNormBackward p;
    p.forward = norm_of(i), p.forward.add = nullptr, p.forward.sum = nullptr;
    p.grad_y = g[i].as(), p.grad_sum = add[i].as(), p.grad_x = y.as();
    p.grad_weight = grad_weight.as<float>(), p.grad_bias = grad_bias.as<float>();
    check(kernels::cuda::layer_norm_backward(p, scratch.as(), kernels::on_stream(stream)));
  });
}

// Times a layer that adds a norm, fused with the norm after it: 20 bytes an element in the forward, 16 in the backward.
void time_layer_norm_twice(Report& report) {
  const int64_t rows = 65536, width = 128, count = rows * width;
  const int sets = 2;
  const kernels::DType dtype = kernels::DType::f32;
  const std::vector<Buffer> x = random_buffers(sets, count, dtype, 1), add = random_buffers(sets, count, dtype, 100),
                            g = random_buffers(sets, count, dtype, 200);
  const Buffer weights = random_buffer(4 * width, dtype, 1, 300);
  const Buffer first_sum(count * 4), sum(count * 4), y(count * 4), statistics(4 * rows * 4), columns(4 * width * 4);
  const auto norm = [&](int i) {
    kernels::LayerNorm p;
    p.weight = weights.as<float>() + 2 * i * width, p.bias = weights.as<float>() + (2 * i + 1) * width;
    p.mean = statistics.as<float>() + 2 * i * rows, p.inverse_std = p.mean + rows, p.rows = rows, p.width = width;
    return p;
  };
  const std::string size = "65536x128 fp32";
  report.time("layer_norm_twice " + size, 20 * count, sets, [&](int i, cudaStream_t stream) {
    kernels::LayerNormTwice p{norm(0), norm(1)};
    p.first.x = x[i].as(), p.first.add = add[i].as(), p.first.sum = first_sum.as(), p.second.sum = sum.as(), p.second.y = y.as();
    check(kernels::cuda::layer_norm_twice_forward(p, kernels::on_stream(stream)));
  });
  const auto backward_of = [&](int i) {
    kernels::LayerNormTwiceBackward p;
    p.first = norm(0), p.second = norm(1);
    p.first.x = x[i].as(), p.grad_y = g[i].as(), p.grad_sum = add[i].as(), p.grad_x = y.as();
    for (int n = 0; n < 2; ++n) {
      p.grad_weight[n] = columns.as<float>() + 2 * n * width, p.grad_bias[n] = columns.as<float>() + (2 * n + 1) * width;
    }
    return p;
  };
  const Buffer scratch(kernels::cuda::layer_norm_twice_backward_scratch(backward_of(0)));
  report.time("layer_norm_twice backward " + size, 16 * count, sets, [&](int i, cudaStream_t stream) {
    check(kernels::cuda::layer_norm_twice_backward(backward_of(i), scratch.as(), kernels::on_stream(stream)));
  });
}

const DefineFamily<Report> kLayerNorm("layer_norm", time_layer_norm);
const DefineFamily<Report> kLayerNormTwice("layer_norm_twice", time_layer_norm_twice);

}  // namespace
}  // namespace based::bench
