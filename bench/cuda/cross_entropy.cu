#include "based/kernels/cross_entropy.h"
#include "bench/cuda/cases.cuh"

namespace based::bench {

// A chunk of logits, which become their gradient.
void time_cross_entropy(Report& report) {
  const int64_t rows = 2668, vocab = 50304, count = rows * vocab;
  const int sets = 2;
  const std::vector<Buffer> logits = random_buffers(sets, count, kernels::DType::bf16, 1);
  const Buffer label = upload(std::vector<int64_t>(rows, 17)), loss(rows * 4);
  report.time("cross_entropy " + std::to_string(rows) + "x" + std::to_string(vocab) + " bf16", 4 * count, sets,
              [&](int i, cudaStream_t stream) {
                kernels::CrossEntropy p;
                p.logits = logits[i].as(), p.label = label.as<int64_t>(), p.loss = loss.as<float>();
                p.rows = rows, p.vocab = vocab, p.scale = 1.0F / 32768, p.gradient = true, p.dtype = kernels::DType::bf16;
                check(kernels::cuda::cross_entropy(p, kernels::Stream{stream}));
              });
}

}  // namespace based::bench
