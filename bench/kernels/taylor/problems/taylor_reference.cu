#include "bench/kernels/taylor/problems/taylor_reference.cuh"

namespace based::bench {
namespace {

using kernels::TaylorAttention;

constexpr int kThreads = 256;

__device__ double value(const void* p, kernels::DType dtype, int64_t i) {
  return dtype == kernels::DType::bf16 ? static_cast<double>(static_cast<float>(static_cast<const __nv_bfloat16*>(p)[i]))
                                       : static_cast<double>(static_cast<const float*>(p)[i]);
}

// Packed feature f of x, by the loops of the definition.
__device__ double feature(const double* x, int d, int f) {
  if (f == 0) return 1;
  if (f <= d) return x[f - 1];
  int n = 1 + d;
  for (int i = 0; i < d; ++i) {
    for (int j = i; j < d; ++j, ++n) {
      if (n == f) return x[i] * x[j] * (i == j ? 0.70710678118654752440 : 1.0);
    }
  }
  return 0;
}

// Decay rates of a head.
__device__ double decay_of(const TaylorAttention& p, int head) { return p.decay != nullptr ? static_cast<double>(p.decay[head]) : 1.0; }
__device__ double sums_decay_of(const TaylorAttention& p, int head) { return p.decay_denominator ? decay_of(p, head) : 1.0; }
__device__ double power(double rate, int64_t n) { return rate == 1 ? 1.0 : pow(rate, static_cast<double>(n)); }

__device__ int64_t row_of(const TaylorAttention& p, int64_t token) {
  int64_t row = 0;
  while (p.row_start[row + 1] <= token) ++row;
  return row;
}

__global__ void forward(TaylorAttention p, int features, int64_t first, int64_t step, double* y, double* denominator) {
  __shared__ double q[64], weight[kThreads], sums_weight[kThreads], partial[kThreads], phi[2200];
  const int64_t token = first + blockIdx.x * step, row = row_of(p, token), start = p.row_start[row];
  const int head = blockIdx.y, tid = threadIdx.x, fd = p.feature_dim;
  const double g = decay_of(p, head), sums_g = sums_decay_of(p, head);
  if (tid < fd) q[tid] = value(p.q, p.dtype, (token * p.heads + head) * fd + tid);
  __syncthreads();
  for (int f = tid; f < features; f += kThreads) phi[f] = feature(q, fd, f);
  __syncthreads();
  // A thread sums column d of `columns` over every `groups`-th key.
  const int columns = p.head_dim, groups = kThreads / columns, d = tid % columns, group = tid / columns;
  double number = 0, sum = 0;
  if (p.kv_state != nullptr) {
    const int64_t slot = (p.slot != nullptr ? p.slot[row] : row) * p.heads + head;
    for (int f = group; group < groups && f < features; f += groups) {
      number += phi[f] * static_cast<double>(p.kv_state[(slot * features + f) * p.head_dim + d]);
      sum += phi[f] * static_cast<double>(p.k_state[slot * features + f]);
    }
    number *= power(g, token - start + 1), sum *= power(sums_g, token - start + 1);
  }
  for (int64_t base = start; base <= token; base += kThreads) {
    const int64_t s = base + tid;
    double w = 0, sums_w = 0;
    if (s <= token) {
      double a = 0;
      for (int c = 0; c < fd; ++c) a += q[c] * value(p.k, p.dtype, (s * p.heads + head) * fd + c);
      w = (1 + a + a * a / 2) * power(g, token - s), sums_w = (1 + a + a * a / 2) * power(sums_g, token - s);
    }
    __syncthreads();
    weight[tid] = w, sums_weight[tid] = sums_w;
    __syncthreads();
    for (int i = group; group < groups && i < kThreads && base + i <= token; i += groups) {
      number += weight[i] * value(p.v, p.dtype, ((base + i) * p.heads + head) * p.head_dim + d);
      sum += sums_weight[i];
    }
  }
  __syncthreads();
  partial[tid] = number, weight[tid] = sum;
  __syncthreads();
  if (group != 0) return;
  for (int i = 1; i < groups; ++i) number += partial[i * columns + d], sum += weight[i * columns + d];
  const int64_t at = blockIdx.x * int64_t{p.heads} + head;
  y[at * p.head_dim + d] = number / sum;
  if (d == 0) denominator[at] = sum;
}

__global__ void state_after(TaylorAttention p, int features, double* kv, double* k) {
  __shared__ double x[64], phi;
  const int64_t row = blockIdx.x, start = p.row_start[row], stop = p.row_start[row + 1];
  const int head = blockIdx.y, f = blockIdx.z, d = threadIdx.x;
  const double g = decay_of(p, head), sums_g = sums_decay_of(p, head);
  double number = 0, sum = 0;
  if (p.kv_state != nullptr) {
    const int64_t slot = (p.slot != nullptr ? p.slot[row] : row) * p.heads + head;
    number = static_cast<double>(p.kv_state[(slot * features + f) * p.head_dim + d]);
    sum = static_cast<double>(p.k_state[slot * features + f]);
  }
  for (int64_t s = start; s < stop; ++s) {
    __syncthreads();
    for (int c = d; c < p.feature_dim; c += blockDim.x) x[c] = value(p.k, p.dtype, (s * p.heads + head) * p.feature_dim + c);
    __syncthreads();
    if (d == 0) phi = feature(x, p.feature_dim, f);
    __syncthreads();
    number = number * g + phi * value(p.v, p.dtype, (s * p.heads + head) * p.head_dim + d), sum = sum * sums_g + phi;
  }
  const int64_t at = (row * p.heads + head) * features + f;
  kv[at * p.head_dim + d] = number;
  if (d == 0) k[at] = sum;
}

using kernels::TaylorAttentionBackward;

// dn = dy / D and dD = −dn·y from the reference's y and D.
__global__ void numerators(TaylorAttentionBackward p, const double* y, const double* denominator, double* dn, double* dd) {
  const TaylorAttention& f = p.forward;
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at >= f.tokens * f.heads) return;
  double dot = 0;
  for (int64_t i = at * f.head_dim; i < (at + 1) * f.head_dim; ++i) {
    dn[i] = value(p.grad_y, f.dtype, i) / denominator[at];
    dot -= dn[i] * y[i];
  }
  dd[at] = dot;
}

// Accesses one head of the problem.
struct Head {
  const TaylorAttentionBackward& p;
  const double *dn, *dd;
  int head, features;
  __device__ double q(int64_t t, int i) const {
    return value(p.forward.q, p.forward.dtype, (t * p.forward.heads + head) * p.forward.feature_dim + i);
  }
  __device__ double k(int64_t t, int i) const {
    return value(p.forward.k, p.forward.dtype, (t * p.forward.heads + head) * p.forward.feature_dim + i);
  }
  __device__ double v(int64_t t, int d) const {
    return value(p.forward.v, p.forward.dtype, (t * p.forward.heads + head) * p.forward.head_dim + d);
  }
  __device__ double dnum(int64_t t, int d) const { return dn[(t * p.forward.heads + head) * p.forward.head_dim + d]; }
  __device__ double dden(int64_t t) const { return dd[t * p.forward.heads + head]; }
  __device__ double decay_power(int64_t n) const { return power(decay_of(p.forward, head), n); }
  __device__ double sums_decay_power(int64_t n) const { return power(sums_decay_of(p.forward, head), n); }
  __device__ double score(int64_t t, int64_t s) const {
    double a = 0;
    for (int i = 0; i < p.forward.feature_dim; ++i) a += q(t, i) * k(s, i);
    return a;
  }
  __device__ double pair(int64_t t, int64_t s) const {  // gradient of the score of query t and key s
    double g = 0;
    for (int d = 0; d < p.forward.head_dim; ++d) g += dnum(t, d) * v(s, d);
    return (g * decay_power(t - s) + dden(t) * sums_decay_power(t - s)) * (1 + score(t, s));
  }
  // Σ_f ∂φ_f(x)/∂x_i Σ_d state[f][d] values(d) + sums[f]·weight
  template <typename X, typename Values>
  __device__ double state_gradient(const float* kv, const float* sums, int64_t row, int i, const X& x, const Values& values,
                                   double weight) const {
    const int n = p.forward.feature_dim;
    double sum = 0;
    int f = 1 + n;
    const auto add = [&](int number, double slope) {
      const int64_t at = (row * p.forward.heads + head) * features + number;
      double g = static_cast<double>(sums[at]) * weight;
      for (int d = 0; d < p.forward.head_dim; ++d) g += static_cast<double>(kv[at * p.forward.head_dim + d]) * values(d);
      sum += g * slope;
    };
    add(1 + i, 1);
    for (int a = 0; a < n; ++a) {
      for (int b = a; b < n; ++b, ++f) {
        if (a == i && b == i) add(f, 1.41421356237309504880 * x(i));
        if (a == i && b != i) add(f, x(b));
        if (b == i && a != i) add(f, x(a));
      }
    }
    return sum;
  }
};

__global__ void backward(TaylorAttentionBackward p, int features, int64_t first, int64_t step, const double* dn, const double* dd,
                         TaylorGradients to) {
  const TaylorAttention& f = p.forward;
  const int64_t token = first + blockIdx.x * step, row = row_of(f, token), start = f.row_start[row], stop = f.row_start[row + 1];
  const Head h{p, dn, dd, static_cast<int>(blockIdx.y), features};
  const int64_t at = blockIdx.x * int64_t{f.heads} + h.head;
  for (int n = threadIdx.x; n < 2 * f.feature_dim + f.head_dim; n += blockDim.x) {
    double sum = 0;
    if (n < f.feature_dim) {
      for (int64_t s = start; s <= token; ++s) sum += h.pair(token, s) * h.k(s, n);
      if (p.initial_kv_state != nullptr) {
        const double decay = h.decay_power(token - start + 1), sums_decay = h.sums_decay_power(token - start + 1);
        sum += h.state_gradient(
            p.initial_kv_state, p.initial_k_state, row, n, [&](int i) { return h.q(token, i); },
            [&](int d) { return decay * h.dnum(token, d); }, sums_decay * h.dden(token));
      }
      to.q[at * f.feature_dim + n] = sum;
    } else if (n < 2 * f.feature_dim) {
      const int i = n - f.feature_dim;
      for (int64_t t = token; t < stop; ++t) sum += h.pair(t, token) * h.q(t, i);
      if (p.grad_kv_state != nullptr) {
        const double decay = h.decay_power(stop - 1 - token), sums_decay = h.sums_decay_power(stop - 1 - token);
        sum += h.state_gradient(
            p.grad_kv_state, p.grad_k_state, row, i, [&](int c) { return h.k(token, c); }, [&](int d) { return decay * h.v(token, d); },
            sums_decay);
      }
      to.k[at * f.feature_dim + i] = sum;
    } else {
      const int d = n - 2 * f.feature_dim;
      for (int64_t t = token; t < stop; ++t) {
        const double a = h.score(t, token);
        sum += (1 + a + a * a / 2) * h.decay_power(t - token) * h.dnum(t, d);
      }
      if (p.grad_kv_state != nullptr) {
        double x[64];
        for (int c = 0; c < f.feature_dim; ++c) x[c] = h.k(token, c);
        for (int i = 0; i < features; ++i) {
          sum += h.decay_power(stop - 1 - token) * feature(x, f.feature_dim, i) *
                 static_cast<double>(p.grad_kv_state[((row * f.heads + h.head) * features + i) * f.head_dim + d]);
        }
      }
      to.v[at * f.head_dim + d] = sum;
    }
  }
}

__global__ void initial_gradient(TaylorAttentionBackward p, int features, const double* dn, const double* dd, TaylorGradients to) {
  const TaylorAttention& f = p.forward;
  const int64_t row = blockIdx.x, start = f.row_start[row], stop = f.row_start[row + 1];
  const Head h{p, dn, dd, static_cast<int>(blockIdx.y), features};
  const int n = blockIdx.z, d = threadIdx.x;
  const int64_t at = (row * f.heads + h.head) * features + n;
  double sum = 0, sums = 0;
  if (p.grad_kv_state != nullptr) {
    sum = h.decay_power(stop - start) * static_cast<double>(p.grad_kv_state[at * f.head_dim + d]);
    sums = h.sums_decay_power(stop - start) * static_cast<double>(p.grad_k_state[at]);
  }
  for (int64_t t = start; t < stop; ++t) {
    double x[64];
    for (int c = 0; c < f.feature_dim; ++c) x[c] = h.q(t, c);
    const double phi = feature(x, f.feature_dim, n);
    sum += phi * h.decay_power(t - start + 1) * h.dnum(t, d), sums += phi * h.sums_decay_power(t - start + 1) * h.dden(t);
  }
  to.kv[at * f.head_dim + d] = sum;
  if (d == 0) to.k_sums[at] = sums;
}

}  // namespace

void taylor_reference_backward(const TaylorAttentionBackward& p, int64_t first, int64_t step, const TaylorGradients& to) {
  TaylorAttention f = p.forward;
  const int features = static_cast<int>(kernels::packed_features(f.feature_dim));
  const int64_t heads = f.tokens * f.heads;
  const Buffer y(heads * f.head_dim * 8), denominator(heads * 8), dn(heads * f.head_dim * 8), dd(heads * 8);
  f.kv_state = const_cast<float*>(p.initial_kv_state), f.k_state = const_cast<float*>(p.initial_k_state), f.slot = nullptr;
  taylor_reference_forward(f, 0, 1, y.as<double>(), denominator.as<double>());
  numerators<<<static_cast<unsigned>((heads + 127) / 128), 128>>>(p, y.as<double>(), denominator.as<double>(), dn.as<double>(),
                                                                  dd.as<double>());
  const auto count = static_cast<unsigned>((f.tokens - first + step - 1) / step);
  backward<<<dim3(count, f.heads), 96>>>(p, features, first, step, dn.as<double>(), dd.as<double>(), to);
  if (to.kv != nullptr) {
    initial_gradient<<<dim3(static_cast<unsigned>(f.rows), f.heads, features), f.head_dim>>>(p, features, dn.as<double>(), dd.as<double>(),
                                                                                             to);
  }
  check(cudaDeviceSynchronize(), "reference");
}

void taylor_reference_forward(const TaylorAttention& p, int64_t first, int64_t step, double* y, double* denominator) {
  const auto count = static_cast<unsigned>((p.tokens - first + step - 1) / step);
  forward<<<dim3(count, p.heads), kThreads>>>(p, static_cast<int>(kernels::packed_features(p.feature_dim)), first, step, y, denominator);
  check(cudaGetLastError(), "reference");
}

void taylor_reference_state(const TaylorAttention& p, double* kv, double* k) {
  const int features = static_cast<int>(kernels::packed_features(p.feature_dim));
  state_after<<<dim3(static_cast<unsigned>(p.rows), p.heads, features), p.head_dim>>>(p, features, kv, k);
  check(cudaGetLastError(), "reference");
}

}  // namespace based::bench
