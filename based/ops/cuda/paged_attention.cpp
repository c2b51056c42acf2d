#include "based/ops/paged_attention.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_pages, Tensor v_pages, const Tensor& page_table,
            const Tensor& positions, const Tensor& slots, double scale) {
  const OnDevice device("paged_attention_step", {{"q", q},
                                                 {"k", k},
                                                 {"v", v},
                                                 {"k_pages", k_pages},
                                                 {"v_pages", v_pages},
                                                 {"page_table", page_table},
                                                 {"positions", positions},
                                                 {"slots", slots}});
  return paged_attention_step_with(
      {kernels::cuda::paged_attention_scratch, launch_with_scratch<kernels::cuda::paged_attention_step, kernels::PagedAttention>}, q, k, v,
      {k_pages, v_pages, page_table}, positions, slots, scale);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) { m.impl("paged_attention_step", step); }

}  // namespace
}  // namespace based::ops
