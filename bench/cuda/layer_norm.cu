#include "based/kernels/layer_norm.h"
#include "bench/cuda/cases.cuh"

namespace based::bench {

// Of a small model's residual stream, which goes on as a sum.
void time_layer_norm(Report& report) {
  const int64_t rows = 65536, width = 128, count = rows * width;
  const int sets = 2;
  const kernels::DType dtype = kernels::DType::f32;
  const std::vector<Buffer> x = random_buffers(sets, count, dtype, 1), add = random_buffers(sets, count, dtype, 100),
                            g = random_buffers(sets, count, dtype, 200);
  const Buffer weight = random_buffer(width, dtype, 1, 300), bias = random_buffer(width, dtype, 1, 301);
  const Buffer sum(count * 4), y(count * 4), mean(rows * 4), inverse_std(rows * 4), grad_weight(width * 4), grad_bias(width * 4);
  const auto of = [&](int i) {
    kernels::LayerNorm p;
    p.x = x[i].as(), p.add = add[i].as(), p.sum = sum.as(), p.weight = weight.as(), p.bias = bias.as(), p.y = y.as();
    p.mean = mean.as<float>(), p.inverse_std = inverse_std.as<float>(), p.rows = rows, p.width = width;
    return p;
  };
  const std::string size = "65536x128 fp32";
  report.time("layer_norm " + size, 16 * count, sets,
              [&](int i, cudaStream_t stream) { check(kernels::cuda::layer_norm_forward(of(i), kernels::Stream{stream})); });
  kernels::LayerNormBackward b;
  b.forward = of(0);
  const Buffer scratch(kernels::cuda::layer_norm_backward_scratch(b));
  report.time("layer_norm backward " + size, 16 * count, sets, [&](int i, cudaStream_t stream) {
    kernels::LayerNormBackward p;
    p.forward = of(i), p.forward.add = nullptr, p.forward.sum = nullptr;
    p.grad_y = g[i].as(), p.grad_sum = add[i].as(), p.grad_x = y.as();
    p.grad_weight = grad_weight.as<float>(), p.grad_bias = grad_bias.as<float>();
    check(kernels::cuda::layer_norm_backward(p, scratch.as(), kernels::Stream{stream}));
  });
}

}  // namespace based::bench
