// The implementations behind taylor_attention.h's cuda functions; taylor_attention.cu picks one.
#pragma once
#include "based/kernels/taylor_attention.h"

namespace based::kernels::cuda::detail {

bool taylor_forward_sm90_supports(const TaylorAttention&);
int64_t taylor_forward_sm90_scratch(const TaylorAttention&);
Status taylor_forward_sm90(const TaylorAttention&, void* scratch, Stream);

int64_t taylor_forward_generic_scratch(const TaylorAttention&);
Status taylor_forward_generic(const TaylorAttention&, void* scratch, Stream);

bool taylor_backward_sm90_supports(const TaylorAttentionBackward&);
int64_t taylor_backward_sm90_scratch(const TaylorAttentionBackward&);
Status taylor_backward_sm90(const TaylorAttentionBackward&, void* scratch, Stream);

int64_t taylor_backward_generic_scratch(const TaylorAttentionBackward&);
Status taylor_backward_generic(const TaylorAttentionBackward&, void* scratch, Stream);

}  // namespace based::kernels::cuda::detail
