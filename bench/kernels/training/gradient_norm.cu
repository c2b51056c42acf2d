#include "based/kernels/training/gradient_norm.h"

#include "bench/kernels/common/timing.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::on_stream;
namespace gpu = kernels::cuda;

// The parameters of a recall model: an embedding of 8192 words, and small tensors.
void time_gradient_norm(Report& report) {
  std::vector<int64_t> counts{8192 * 128};
  for (int i = 0; i < 19; ++i) counts.push_back(i % 2 == 0 ? 128 : 6144);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Buffer> gradients;
    std::vector<kernels::GradientNormTensor> tensors;
    int64_t bytes = 0;
    for (const int64_t count : counts) {
      gradients.push_back(random_buffer(count, dtype, 1, gradients.size()));
      tensors.push_back({gradients.back().as(), count, dtype});
      bytes += gradients.back().bytes();
    }
    const Buffer loss = upload_floats({1}), loss_and_norm(16), numbers(8);
    kernels::GradientNorm p;
    p.tensors = tensors.data(), p.tensor_count = static_cast<int64_t>(tensors.size());
    p.loss = loss.as<float>(), p.clip = 1;
    p.loss_and_norm = loss_and_norm.as<double>(), p.update_enabled = numbers.as<float>(), p.scale = numbers.as<float>() + 1;
    const Buffer scratch(gpu::gradient_norm_scratch(p));
    report.time("gradient norm 1.1M" + type_name(dtype), bytes, 1,
                [&](int, cudaStream_t stream) { check(gpu::gradient_norm(p, scratch.as(), on_stream(stream))); });
  }
}

const DefineFamily<Report> kGradientNorm("gradient_norm", time_gradient_norm);

}  // namespace
}  // namespace based::bench
