// Inside of based/ops: what an operator's backends share. Each function here checks the arguments, allocates, fills the kernel's struct and
// launches; a backend is a table of kernels and a registration under its dispatch key. Types without a kernel run the reference.
// A GPU's table launches on the current stream; offsets, slots and positions are then on the GPU, and their values are not checked.
#pragma once
#include <limits>
#include <tuple>

#include "based/kernels/causal_attention.h"
#include "based/kernels/cross_entropy.h"
#include "based/kernels/embedding.h"
#include "based/kernels/linear.h"
#include "based/kernels/pointwise.h"
#include "based/kernels/short_conv.h"
#include "based/kernels/taylor_deferred.h"
#include "based/ops/arguments.h"
#include "based/ops/embedding.h"
#include "based/ops/pointwise.h"
#include "based/ops/taylor_deferred.h"
#include "based/ops/torch.h"

namespace based::ops {

// Whether LibTorch's matrix products in x's type are a tenth as fast as those in fp32: bf16 on a CPU without AVX-512.
bool faster_in_fp32(const Tensor& x);

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();  // beyond a limit the reference runs

// Memory of a launch, kept until it is over.
struct TaylorLaunch {
  Tensor q, k, v, cu_seqlens, decay;
  kernels::TaylorAttention arguments;
};
struct TaylorStepLaunch : TaylorLaunch {
  Tensor slots, y;
};
// What a kernel is told of a step; all contiguous, decay fp32 or undefined.
kernels::TaylorAttention taylor_step_arguments(const Tensor& q, const Tensor& k, const Tensor& v, const TaylorState& state,
                                               const Tensor& slots, const Tensor& decay, const Tensor& y);
TaylorStepLaunch prepare_taylor_step(const Tensor& q, const Tensor& k, const Tensor& v, const TaylorState& state, const Tensor& slots,
                                     const OptionalTensor& decay);

struct TaylorAttentionKernels {
  int64_t (*forward_scratch)(const kernels::TaylorAttention&);
  kernels::Status (*forward)(const kernels::TaylorAttention&, void* scratch);
  int64_t (*backward_scratch)(const kernels::TaylorAttentionBackward&);
  kernels::Status (*backward)(const kernels::TaylorAttentionBackward&, void* scratch);
  kernels::Status (*step)(const kernels::TaylorAttention&);
  int64_t step_head_dim = kNoLimit;                                  // the largest that the step's kernel takes
  bool step_scales = false;                                          // it multiplies q and k by a scale
  bool (*takes_strides)(const kernels::TaylorAttention&) = nullptr;  // forward and backward, of these; null: of none
};

// y, kv_state, k_state, denominator
std::tuple<Tensor, Tensor, Tensor, Tensor> taylor_attention_forward_with(const TaylorAttentionKernels& table, const Tensor& q,
                                                                         const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                                         const OptionalTensor& initial_kv_state,
                                                                         const OptionalTensor& initial_k_state,
                                                                         const OptionalTensor& decay);
// Gradients of q, k, v, initial_kv_state, initial_k_state.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> taylor_attention_backward_with(
    const TaylorAttentionKernels& table, const Tensor& grad_y, const OptionalTensor& grad_kv_state, const OptionalTensor& grad_k_state,
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, const OptionalTensor& initial_kv_state,
    const OptionalTensor& initial_k_state, const OptionalTensor& decay, const Tensor& y, const Tensor& denominator);
Tensor taylor_attention_prefill_with(const TaylorAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& cu_seqlens, const TaylorState& state, const Tensor& slots, const OptionalTensor& decay);
Tensor taylor_attention_step_with(const TaylorAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                  const TaylorState& state, const Tensor& slots, const OptionalTensor& decay, double scale);

// Steps whose tokens wait beside the state.
struct TaylorDeferredKernels {
  bool (*takes)(const kernels::TaylorAttention&);
  kernels::Status (*step)(const kernels::TaylorDeferred&);
  kernels::Status (*flush)(const kernels::TaylorDeferred&);
};
Tensor taylor_deferred_step_with(const TaylorDeferredKernels& table, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const TaylorState& state, const TaylorPending& pending, const Tensor& slots, const OptionalTensor& decay,
                                 double scale);
void taylor_deferred_flush_with(const TaylorDeferredKernels& table, const TaylorState& state, const TaylorPending& pending,
                                const Tensor& slots, const OptionalTensor& decay);

// A launch's arguments, and the memory behind them; y and log_sum_exp are the caller's to add.
struct CausalAttentionLaunch {
  Tensor q, k, v, q_starts, k_starts;
  kernels::CausalAttention arguments;
};
CausalAttentionLaunch prepare_causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                                               const Tensor& cu_seqlens_k, int64_t window, double scale);

// A null forward or backward: the reference runs.
struct CausalAttentionKernels {
  int64_t (*forward_scratch)(const kernels::CausalAttention&);
  kernels::Status (*forward)(const kernels::CausalAttention&, void* scratch);
  int64_t (*backward_scratch)(const kernels::CausalAttentionBackward&);
  kernels::Status (*backward)(const kernels::CausalAttentionBackward&, void* scratch);
  kernels::Status (*step)(const kernels::CausalAttentionStep&);
  bool joint_gradients = false;  // the backward may write them side by side, as columns of one tensor
};

// Shapes and types of [tokens, heads, head_dim], head_dim at most 256, key heads a divisor of heads. Throws Error.
void check_attention_heads(const char* op, const Tensor& q, const Tensor& k, const Tensor& v);
// Shapes and types, without reading device memory. Throws Error.
void check_causal_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                            int64_t window);
// y, log_sum_exp
std::tuple<Tensor, Tensor> causal_attention_forward_with(const CausalAttentionKernels& table, const Tensor& q, const Tensor& k,
                                                         const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                                                         int64_t window, double scale);
// Gradients of q, k, v.
std::tuple<Tensor, Tensor, Tensor> causal_attention_backward_with(const CausalAttentionKernels& table, const Tensor& grad_y,
                                                                  const Tensor& q, const Tensor& k, const Tensor& v,
                                                                  const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window,
                                                                  double scale, const Tensor& y, const Tensor& log_sum_exp);
struct CausalAttentionStepLaunch {
  Tensor q, k, v, positions, slots, y;
  kernels::CausalAttentionStep arguments;
};
// What a kernel is told; a token's heads side by side, the rest contiguous.
kernels::CausalAttentionStep causal_attention_step_arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& k_ring,
                                                             const Tensor& v_ring, const Tensor& position, const Tensor& slots,
                                                             const Tensor& y);
CausalAttentionStepLaunch prepare_causal_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring,
                                                        const Tensor& positions, const Tensor& slots, double scale);
Tensor causal_attention_step_with(const CausalAttentionKernels& table, const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring,
                                  Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale);

// Views of a joint projection's output: q, k, v [rows, heads or kv_heads, head_dim] for this ring. Throws Error.
std::tuple<Tensor, Tensor, Tensor> columns_of_heads(const char* op, const Tensor& qkv, const Tensor& k_ring);
// rotary_attention_step where no kernel does it at once.
Tensor rotary_attention_step_apart(Tensor qkv, Tensor k_ring, Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale,
                                   int64_t dim, double base);

// Whether nobody else can see this memory, so that a backward pass may write it.
inline bool is_sole_owner(const Tensor& tensor) {
  return !torch::GradMode::is_enabled() && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

// By a kernel, or else in ATen; see embedding_backward_ and embedding_step_.
struct EmbeddingKernels {
  bool (*supports)(const kernels::EmbeddingBackward&);
  int64_t (*scratch)(const kernels::EmbeddingBackward&);
  kernels::Status (*backward)(const kernels::EmbeddingBackward&, void* scratch);
  kernels::Status (*step)(const kernels::EmbeddingStep&);
};
void embedding_backward_with(const EmbeddingKernels& table, Tensor sum, const Tensor& grad, const Tensor& ids);
EmbeddedStep embedding_step_with(const EmbeddingKernels& kernels, Tensor seen, const Tensor& slots, const Tensor& table, const Tensor& ids);

struct ShortConvKernels {
  kernels::Status (*forward)(const kernels::ShortConv&);
  int64_t (*backward_scratch)(const kernels::ShortConvBackward&);
  kernels::Status (*backward)(const kernels::ShortConvBackward&, void* scratch);
  kernels::Status (*step)(const kernels::ShortConv&);
  bool (*backward_sums)(const kernels::ShortConvBackward&) = nullptr;  // whether the backward can give grad_sums; null: it cannot
};

struct ShortConvLayer {
  const Tensor &x, &weight;
  const OptionalTensor &bias, &gate;
  bool silu;
  Tensor in_bias = {};  // [2·channels], what x and the gate still lack; a GPU's kernels add it
};
// y, final state
std::tuple<Tensor, Tensor> short_conv_with(const ShortConvKernels& table, const ShortConvLayer& layer, const Tensor& cu_seqlens,
                                           const OptionalTensor& initial_state);
// Gradients of x, weight, bias, gate, initial_state; `sums`, if given, becomes [2·channels], those of x and of the gate summed over all
// tokens in fp32, where the kernel gives them.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> short_conv_backward_with(const ShortConvKernels& table, const Tensor& grad_y,
                                                                            const OptionalTensor& grad_state, const ShortConvLayer& layer,
                                                                            const Tensor& cu_seqlens, const OptionalTensor& initial_state,
                                                                            Tensor* sums = nullptr);
// short_conv_prefill as the operator: in place.
Tensor short_conv_prefill_in_place(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                                   const Tensor& cu_seqlens, Tensor state, const Tensor& slots);
Tensor short_conv_prefill_with(const ShortConvKernels& table, const ShortConvLayer& layer, const Tensor& cu_seqlens, Tensor state,
                               const Tensor& slots);
// What a kernel is told of a step, its y, state and slots among it; bias and gate undefined where there are none.
kernels::ShortConv short_conv_step_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& gate, bool silu,
                                             const Tensor& state, const Tensor& slots, const Tensor& y);
Tensor short_conv_step_with(const ShortConvKernels& table, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                            const OptionalTensor& gate, bool silu, Tensor state, const Tensor& slots);

// Shapes and types. Throws Error.
void check_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias);
// What a kernel is told; rows may lie any distance apart, a row's entries side by side. `bias`: undefined where there is none.
kernels::Linear linear_arguments(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
// Memory of a linear layer's launch, its result among it.
struct LinearLaunch {
  Tensor x, weight, bias, y;
  kernels::Linear arguments;
};
// `columns` of y: the weight's rows, or half of them for SwiGLU.
LinearLaunch prepare_linear(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, int64_t columns);

struct PointwiseKernels {
  kernels::Status (*rms_norm)(const kernels::RmsNorm&);
  int64_t (*rms_norm_backward_scratch)(const kernels::RmsNormBackward&);
  kernels::Status (*rms_norm_backward)(const kernels::RmsNormBackward&, void* scratch);
  kernels::Status (*swiglu)(const kernels::Swiglu&);
  kernels::Status (*swiglu_backward)(const kernels::SwigluBackward&);
  kernels::Status (*rotary)(const kernels::Rotary&);
  int64_t rms_norm_width = kNoLimit;  // the largest that its kernels take
};
extern const PointwiseKernels kCpuPointwise;

// Logits [rows, vocab] become (softmax − one-hot)·scale in place where `gradient`; returns the loss of each row.
using CrossEntropySoftmax = Tensor (*)(Tensor& logits, const Tensor& targets, double scale, bool gradient);
// sum [m, n] += a [m, k] · b [k, n], where the sum may be of a wider type than a and b; the first one finds nothing in it. `memory` lives
// from chunk to chunk.
using AddProduct = void (*)(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first);
void add_product(Tensor& sum, const Tensor& a, const Tensor& b, Tensor& memory, bool first);  // by ATen, on any device
struct CrossEntropyParts {
  CrossEntropySoftmax softmax;
  AddProduct add_product;
  int64_t chunk_bytes;                 // of a chunk's logits, which are those of 64 rows at least
  bool weight_grad_row_major = false;  // weight's gradient lies as weight does; or transposed, so that logits are read along their rows
};
// loss, its gradient by hidden and by weight (undefined where not asked for). `labelled`: see cross_entropy.
std::tuple<Tensor, Tensor, Tensor> cross_entropy_with(const CrossEntropyParts& parts, const Tensor& hidden, const Tensor& weight,
                                                      const Tensor& labels, int64_t labelled, bool grad_hidden, bool grad_weight);
// token_log_probabilities, likewise.
Tensor token_log_probabilities_with(const CrossEntropyParts& parts, const Tensor& hidden, const Tensor& weight, const Tensor& targets);
// The softmax by a kernel, or in ATen where the logits' type has none.
Tensor cross_entropy_softmax_with(kernels::Status (*kernel)(const kernels::CrossEntropy&), Tensor& logits, const Tensor& targets,
                                  double scale, bool gradient);

// y, inverse_rms
std::tuple<Tensor, Tensor> rms_norm_forward_with(const PointwiseKernels& table, const Tensor& x, const Tensor& weight, double eps);
std::tuple<Tensor, Tensor, Tensor> rms_norm_add_forward_with(const PointwiseKernels& table, const OptionalTensor& residual, const Tensor& x,
                                                             const Tensor& weight, double eps);  // sum, y, inverse_rms
// Gradients of residual and x, which are the same, and of weight.
std::tuple<Tensor, Tensor> rms_norm_add_backward_with(const PointwiseKernels& table, const OptionalTensor& grad_sum, const Tensor& grad_y,
                                                      const Tensor& sum, const Tensor& weight, const Tensor& inverse_rms);
// What a kernel is told; x, added, sum and deferred may be undefined.
kernels::RmsNorm rms_norm_arguments(const Tensor& x, const Tensor& added, const Tensor& sum, const Tensor& weight, double eps,
                                    const Tensor& deferred, const Tensor& y);
Tensor rms_norm_add_with(const PointwiseKernels& table, Tensor residual, const Tensor& x, const Tensor& weight, double eps,
                         const OptionalTensor& deferred);
Tensor rms_norm_of_sum_with(const PointwiseKernels& table, const Tensor& residual, const Tensor& x, const Tensor& weight, double eps);
// Gradients of x, weight.
std::tuple<Tensor, Tensor> rms_norm_backward_with(const PointwiseKernels& table, const Tensor& grad_y, const Tensor& x,
                                                  const Tensor& weight, const Tensor& inverse_rms);
Tensor swiglu_with(const PointwiseKernels& table, const Tensor& h);
Tensor swiglu_backward_with(const PointwiseKernels& table, const Tensor& grad_y, const Tensor& h);
void rotary_with(const PointwiseKernels& table, Tensor x, const Tensor& positions, const Rotation& rotation);

}  // namespace based::ops
