#pragma once

namespace based::kernels::cuda::detail {

// log(1 / (1 + e^−x))
__device__ __forceinline__ float log_sigmoid(float x) { return fminf(x, 0.0F) - log1pf(expf(-fabsf(x))); }

}  // namespace based::kernels::cuda::detail
