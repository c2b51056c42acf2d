#include "based/kernels/cross_entropy.h"

#include "based/ops/cuda/library_product.h"
#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

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

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t labelled,
                                           bool grad_hidden, bool grad_weight) {
  const OnDevice device("cross_entropy", {{"hidden", hidden}, {"weight", weight}, {"labels", labels}});
  return cross_entropy_with({softmax, add_product_on_gpu, kChunkBytes, /*weight_grad_row_major=*/true}, hidden, weight, labels, labelled,
                            grad_hidden, grad_weight);
}

Tensor scores(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  const OnDevice device("token_log_probabilities", {{"hidden", hidden}, {"weight", weight}, {"targets", targets}});
  return token_log_probabilities_with({softmax, add_product_on_gpu, kChunkBytes}, hidden, weight, targets);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("cross_entropy_forward", forward);
  m.impl("token_log_probabilities", scores);
}

}  // namespace
}  // namespace based::ops
