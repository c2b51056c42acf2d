#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

using kernels::TaylorAttention;
using kernels::TaylorDeferred;

bool takes(const TaylorAttention& p) { return kernels::taylor_deferred_takes(p, kernels::cuda::this_gpu()); }

const TaylorDeferredKernels kCuda{takes, launch<kernels::cuda::taylor_deferred_step, TaylorDeferred>,
                                  launch<kernels::cuda::taylor_deferred_settle, TaylorDeferred>};

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, Tensor waiting_k, Tensor waiting_v,
            Tensor waiting, const Tensor& slots, const OptionalTensor& decay, double scale) {
  const OnDevice device("taylor_deferred_step", {{"q", q},
                                                 {"k", k},
                                                 {"v", v},
                                                 {"kv_state", kv_state},
                                                 {"k_state", k_state},
                                                 {"waiting_k", waiting_k},
                                                 {"waiting_v", waiting_v},
                                                 {"waiting", waiting},
                                                 {"slots", slots},
                                                 {"decay", decay}});
  return taylor_deferred_step_with(kCuda, q, k, v, {kv_state, k_state}, {waiting_k, waiting_v, waiting}, slots, decay, scale);
}

void settle(Tensor kv_state, Tensor k_state, const Tensor& waiting_k, const Tensor& waiting_v, Tensor waiting, const Tensor& slots,
            const OptionalTensor& decay) {
  const OnDevice device("taylor_deferred_settle_", {{"kv_state", kv_state},
                                                    {"k_state", k_state},
                                                    {"waiting_k", waiting_k},
                                                    {"waiting_v", waiting_v},
                                                    {"waiting", waiting},
                                                    {"slots", slots},
                                                    {"decay", decay}});
  taylor_deferred_settle_with(kCuda, {kv_state, k_state}, {waiting_k, waiting_v, waiting}, slots, decay);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("taylor_deferred_step", step);
  m.impl("taylor_deferred_settle_", settle);
}

}  // namespace
}  // namespace based::ops
