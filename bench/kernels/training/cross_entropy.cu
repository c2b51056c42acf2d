#include "based/kernels/training/cross_entropy.h"
#include "bench/kernels/common/timing.cuh"

namespace based::bench {

namespace {

// A chunk of logits. The gradient overwrites them or is written in fp16 to another tensor.
void time_cross_entropy(Report& report, int64_t rows, int64_t vocab, kernels::DType dtype, bool half = false) {
  const int64_t count = rows * vocab;
  const int sets = 2;
  const std::vector<Buffer> logits = random_buffers(sets, count, dtype, 1);
  const Buffer label = upload(std::vector<int64_t>(rows, 17)), loss(rows * 4), gradient(half ? 2 * count : 0);
  const std::string name =
      "cross_entropy " + std::to_string(rows) + "x" + std::to_string(vocab) + type_name(dtype) + (half ? " gradient fp16" : "");
  report.time(name, (kernels::dtype_size(dtype) + (half ? 2 : kernels::dtype_size(dtype))) * count, sets, [&](int i, cudaStream_t stream) {
    kernels::CrossEntropy p;
    p.logits = logits[i].as(), p.label = label.as<int64_t>(), p.loss = loss.as<float>();
    p.rows = rows, p.vocab = vocab, p.scale = 1.0F / 32768, p.gradient = true, p.dtype = dtype;
    if (half) p.half_gradient = gradient.as();
    check(kernels::cuda::cross_entropy(p, kernels::on_stream(stream)));
  });
}

void time_cross_entropy(Report& report) {
  time_cross_entropy(report, 2668, 50304, kernels::DType::bf16);
  time_cross_entropy(report, 16384, 8192, kernels::DType::f32);
  time_cross_entropy(report, 16384, 8192, kernels::DType::f32, /*half=*/true);
}

const DefineFamily<Report> kCrossEntropy("cross_entropy", time_cross_entropy);

}  // namespace
}  // namespace based::bench
