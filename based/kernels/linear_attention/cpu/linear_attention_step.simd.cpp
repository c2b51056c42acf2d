// The recurrent step of linear attention, one head of one row.
#include "based/kernels/common/cpu/running_sums_step.h"
#include "based/kernels/linear_attention/cpu/linear_attention_simd.h"

namespace based::kernels::cpu::BASED_ISA {
namespace {

template <class T>
void run(const LinearAttentionStep& a, int64_t row, int64_t head) {
  const int64_t token_head = row * a.heads + head, state_head = (a.slot ? a.slot[row] : row) * a.heads + head;
  const TokenFeatures<T> token{static_cast<const T*>(a.k) + token_head * a.features, static_cast<const T*>(a.q) + token_head * a.features,
                               a.features, a.head_dim, 1.0f};
  const float inverse = 1.0f / (denominator(token, a.k_state + state_head * a.features) + a.eps);
  read_out(token, static_cast<const T*>(a.v) + token_head * a.head_dim, a.kv_state + state_head * a.features * a.head_dim,
           static_cast<T*>(a.y) + token_head * a.head_dim, inverse);
}

}  // namespace

void linear_attention_token(const LinearAttentionStep& a, int64_t row, int64_t head) {
  a.dtype == DType::f32 ? run<float>(a, row, head) : run<bf16>(a, row, head);
}

}  // namespace based::kernels::cpu::BASED_ISA
