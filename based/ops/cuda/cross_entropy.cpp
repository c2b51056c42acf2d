#include "based/ops/cross_entropy.h"

#include "based/ops/cuda/library_product.h"
#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

constexpr int64_t kChunkBytes = int64_t{256} << 20;  // of logits: enough rows that the products fill the GPU

Tensor softmax(Tensor& logits, const Tensor& targets, double scale, bool gradient) {
  return cross_entropy_softmax_with(launch<kernels::cuda::cross_entropy, kernels::CrossEntropy>, logits, targets, scale, gradient);
}

// bf16 products are added to an fp32 sum by cuBLAS itself: no product in memory, none rounded. The sums lie by word: transposed.
void add_product_on_gpu(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first) {
  if (add_product_by_library(sum.t(), b, a.t(), first)) return;
  if (sum.scalar_type() != at::kFloat || a.scalar_type() != at::kBFloat16)
    add_product(sum, a, b, memory, first);
  else if (first)
    at::mm_out(sum, a, b, at::kFloat);
  else
    at::addmm_out(sum, sum, a, b, at::kFloat);
}

constexpr CrossEntropyParts kLoss{softmax, add_product_on_gpu, kChunkBytes, /*weight_grad_row_major=*/true};
constexpr CrossEntropyParts kScores{softmax, add_product_on_gpu, kChunkBytes};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<CrossEntropyForward, [](const CrossEntropyForward& in) { return cross_entropy_with(kLoss, in); }>(m);
  implement<TokenLogProbabilities, [](const TokenLogProbabilities& in) { return token_log_probabilities_with(kScores, in); }>(m);
}

}  // namespace
}  // namespace based::ops
