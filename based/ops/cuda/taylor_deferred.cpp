#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

using kernels::TaylorAttention;
using kernels::TaylorDeferred;

bool takes(const TaylorAttention& p) { return kernels::taylor_deferred_takes(p, kernels::cuda::this_gpu()); }

const TaylorDeferredKernels kCuda{takes, launch<kernels::cuda::taylor_deferred_step, TaylorDeferred>,
                                  launch<kernels::cuda::taylor_deferred_flush, TaylorDeferred>};

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor pending_k, Tensor pending_v,
            Tensor pending, const Tensor& slots, const OptionalTensor& decay, double scale) {
  const OnDevice device("taylor_deferred_step", {{"q", q},
                                                 {"k", k},
                                                 {"v", v},
                                                 {"kv_state", kv_state},
                                                 {"k_state", k_state},
                                                 {"pending_k", pending_k},
                                                 {"pending_v", pending_v},
                                                 {"pending", pending},
                                                 {"slots", slots},
                                                 {"decay", decay}});
  return taylor_deferred_step_with(kCuda, q, k, v, {kv_state, k_state}, {pending_k, pending_v, pending}, slots, decay, scale);
}

void flush(Tensor kv_state, Tensor k_state, const Tensor& pending_k, const Tensor& pending_v, Tensor pending, const Tensor& slots,
           const OptionalTensor& decay) {
  const OnDevice device("taylor_deferred_flush_", {{"kv_state", kv_state},
                                                   {"k_state", k_state},
                                                   {"pending_k", pending_k},
                                                   {"pending_v", pending_v},
                                                   {"pending", pending},
                                                   {"slots", slots},
                                                   {"decay", decay}});
  taylor_deferred_flush_with(kCuda, {kv_state, k_state}, {pending_k, pending_v, pending}, slots, decay);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("taylor_deferred_step", step);
  m.impl("taylor_deferred_flush_", flush);
}

}  // namespace
}  // namespace based::ops
