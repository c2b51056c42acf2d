#include "based/ops/cross_entropy.h"

#include "based/ops/cuda/library_product.h"
#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 20;  // of logits: enough rows that the products fill the GPU

void softmax(const CrossEntropyChunk& chunk) {
  cross_entropy_softmax_with(launch<kernels::cuda::cross_entropy, kernels::CrossEntropy>, chunk);
}

// Products of bf16 or fp16 are added to an fp32 sum by cuBLAS itself: no product in memory, none rounded. The weight's sums lie by word:
// transposed.
void add_product_on_gpu(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first) {
  if (add_product_by_library(sum.t(), b, a.t(), first)) return;
  if (sum.scalar_type() != at::kFloat || a.scalar_type() == at::kFloat)
    add_product(sum, a, b, memory, first);
  else if (first)
    at::mm_out(sum, a, b, at::kFloat);
  else
    at::addmm_out(sum, sum, a, b, at::kFloat);
}

constexpr CrossEntropyParts kParts{softmax, add_product_on_gpu, kChunkBytes, /*weight_grad_row_major=*/true};
// A TF32 product rounds its operands to 10 bits of mantissa, too, and costs twice as much in memory and in tensor cores.
constexpr CrossEntropyParts kTf32Parts{softmax, add_product_on_gpu, kChunkBytes, /*weight_grad_row_major=*/true, /*half_gradient=*/true};

const CrossEntropyParts& parts_for(const Tensor& hidden) {
  return hidden.scalar_type() == at::kFloat && at::globalContext().allowTF32CuBLAS() ? kTf32Parts : kParts;
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<CrossEntropyForward, [](const CrossEntropyForward& in) { return cross_entropy_with(parts_for(in.of.hidden), in); }>(m);
  implement<TokenLogProbabilities, [](const TokenLogProbabilities& in) { return token_log_probabilities_with(parts_for(in.hidden), in); }>(
      m);
}

}  // namespace
}  // namespace based::ops
