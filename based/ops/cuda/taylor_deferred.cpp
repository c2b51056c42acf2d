#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

using kernels::TaylorAttention;
using kernels::TaylorDeferred;

bool is_faster(const TaylorAttention& p, c10::Device device) {
  const c10::cuda::CUDAGuard on_device(device);
  return kernels::cuda::taylor_deferred_is_faster(p);
}

[[maybe_unused]] const bool registered = [] {
  taylor_deferred_on_cuda() = {is_faster, kernels::cuda::taylor_deferred_takes, launch<kernels::cuda::taylor_deferred_step, TaylorDeferred>,
                               launch<kernels::cuda::taylor_deferred_settle, TaylorDeferred>};
  return true;
}();

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
  return taylor_deferred_step_with(taylor_deferred_on_cuda(), q, k, v, {kv_state, k_state}, {waiting_k, waiting_v, waiting}, slots, decay,
                                   scale);
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
  taylor_deferred_settle_with(taylor_deferred_on_cuda(), {kv_state, k_state}, {waiting_k, waiting_v, waiting}, slots, decay);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("taylor_deferred_step", step);
  m.impl("taylor_deferred_settle_", settle);
}

}  // namespace
}  // namespace based::ops
