#include "based/ops/training/cross_entropy.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/linear/cuda/library_product.h"

namespace based::ops {
namespace {

constexpr int64_t kCrossEntropyChunkLogitBytes = int64_t{256} << 20;  // enough rows that the products fill the GPU

// cuBLAS adds products of bf16 or fp16 to an fp32 sum itself: the product is neither stored nor rounded. The sum of weight's gradient is
// stored as [vocab, d], so `sum` is its transpose.
void add_product_on_gpu(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first) {
  if (add_product_by_library(sum.t(), b, a.t(), first)) return;
  if (sum.scalar_type() != at::kFloat || a.scalar_type() == at::kFloat)
    add_product(sum, a, b, memory, first);
  else if (first)
    at::mm_out(sum, a, b, at::kFloat);
  else
    at::addmm_out(sum, sum, a, b, at::kFloat);
}

constexpr CrossEntropyParts kParts{add_product_on_gpu, kCrossEntropyChunkLogitBytes, /*weight_grad_row_major=*/true};
// A TF32 product rounds its operands to 10 bits of mantissa too, and takes twice the memory and twice the time on tensor cores.
constexpr CrossEntropyParts kTf32Parts{add_product_on_gpu, kCrossEntropyChunkLogitBytes, /*weight_grad_row_major=*/true,
                                       /*half_gradient=*/true};

const CrossEntropyParts& parts_for(const Tensor& hidden) {
  return hidden.scalar_type() == at::kFloat && at::globalContext().allowTF32CuBLAS() ? kTf32Parts : kParts;
}

Result<CrossEntropyForward> cross_entropy_forward_gpu(const CrossEntropyForward& in) {
  return cross_entropy_in_chunks(parts_for(in.inputs.hidden), in);
}
Result<TokenLogProbabilities> token_log_probabilities_gpu(const TokenLogProbabilities& in) {
  return token_log_probabilities_in_chunks(parts_for(in.hidden), in);
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CUDA, m) {
  implement<CrossEntropyForward, cross_entropy_forward_gpu>(m);
  implement<TokenLogProbabilities, token_log_probabilities_gpu>(m);
}

}  // namespace
}  // namespace based::ops
