// The implementations of the cuda functions of taylor.h; cuda/taylor.cu chooses among them.
#pragma once
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cuda::detail {

bool taylor_forward_sm90_supports(const TaylorAttention&);
int64_t taylor_forward_sm90_scratch(const TaylorAttention&);
Status taylor_forward_sm90(const TaylorAttention&, void* scratch, Queue);

bool taylor_forward_mma_supports(const TaylorAttention&);
int64_t taylor_forward_mma_scratch(const TaylorAttention&);
Status taylor_forward_mma(const TaylorAttention&, void* scratch, Queue);

int64_t taylor_forward_generic_scratch(const TaylorAttention&);
Status taylor_forward_generic(const TaylorAttention&, void* scratch, Queue);

bool taylor_backward_sm90_supports(const TaylorAttentionBackward&);
int64_t taylor_backward_sm90_scratch(const TaylorAttentionBackward&);
Status taylor_backward_sm90(const TaylorAttentionBackward&, void* scratch, Queue);

bool taylor_backward_mma_supports(const TaylorAttentionBackward&);
int64_t taylor_backward_mma_scratch(const TaylorAttentionBackward&);
Status taylor_backward_mma(const TaylorAttentionBackward&, void* scratch, Queue);

int64_t taylor_backward_generic_scratch(const TaylorAttentionBackward&);
Status taylor_backward_generic(const TaylorAttentionBackward&, void* scratch, Queue);

}  // namespace based::kernels::cuda::detail
