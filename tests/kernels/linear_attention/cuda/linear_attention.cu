#include <algorithm>

#include "bench/kernels/linear_attention/problems/linear_attention.cuh"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
using kernels::LinearAttention;
using kernels::LinearAttentionBackward;
namespace gpu = kernels::cuda;

__device__ int64_t row_of(const LinearAttention& p, int64_t token) {
  int64_t row = 0;
  while (p.row_start[row + 1] <= token) ++row;
  return row;
}

__global__ void score(LinearAttention p, int64_t row_length, double* weights) {
  const int64_t token = blockIdx.x, head = blockIdx.y, first = p.row_start[row_of(p, token)];
  for (int64_t s = first + threadIdx.x; s <= token; s += blockDim.x) {
    double sum = 0;
    for (int i = 0; i < p.features; ++i) {
      sum += static_cast<double>(static_cast<const float*>(p.q)[(token * p.heads + head) * p.features + i]) *
             static_cast<double>(static_cast<const float*>(p.k)[(s * p.heads + head) * p.features + i]);
    }
    weights[(token * p.heads + head) * row_length + s - first] = sum;
  }
}

// Reference results from the weights of a head; each thread computes one element.
struct Reference {
  LinearAttentionBackward b;
  int64_t row_length;  // length of the longest row
  const double* weights;
  double *y, *denominator, *grad_q, *grad_k, *grad_v;

  __device__ int64_t start(int64_t token) const { return b.forward.row_start[row_of(b.forward, token)]; }
  __device__ int64_t stop(int64_t token) const { return b.forward.row_start[row_of(b.forward, token) + 1]; }
  __device__ int64_t at(int64_t token, int head) const { return token * b.forward.heads + head; }
  __device__ double weight(int64_t query, int64_t key, int head, int64_t first) const {
    return weights[at(query, head) * row_length + key - first];
  }
  __device__ static double value(const void* x, int64_t i) { return static_cast<double>(static_cast<const float*>(x)[i]); }
  // The gradient with respect to a score.
  __device__ double slope(int64_t query, int64_t key, int head) const {
    double sum = 0;
    for (int d = 0; d < b.forward.head_dim; ++d) {
      const int64_t i = at(query, head) * b.forward.head_dim + d;
      sum += value(b.grad_y, i) * (value(b.forward.v, at(key, head) * b.forward.head_dim + d) - y[i]);
    }
    return sum / denominator[at(query, head)];
  }
};

__global__ void forward(Reference r) {
  const LinearAttention& f = r.b.forward;
  const int64_t token = blockIdx.x, first = r.start(token);
  const int head = blockIdx.y;
  double divisor = static_cast<double>(f.eps);
  for (int64_t s = first; s <= token; ++s) divisor += r.weight(token, s, head, first);
  if (threadIdx.x == 0) r.denominator[r.at(token, head)] = divisor;
  for (int d = threadIdx.x; d < f.head_dim; d += blockDim.x) {
    double sum = 0;
    for (int64_t s = first; s <= token; ++s) sum += r.weight(token, s, head, first) * Reference::value(f.v, r.at(s, head) * f.head_dim + d);
    r.y[r.at(token, head) * f.head_dim + d] = sum / divisor;
  }
}

__global__ void backward(Reference r) {
  const LinearAttention& f = r.b.forward;
  const int64_t token = blockIdx.x, first = r.start(token), stop = r.stop(token);
  const int head = blockIdx.y;
  __shared__ double as_key[1024], as_query[1024];  // gradients of the scores of the token's pairs, as a key and as a query
  for (int64_t s = first + threadIdx.x; s < stop; s += blockDim.x) {
    as_key[s - first] = s <= token ? r.slope(token, s, head) : 0;
    as_query[s - first] = s >= token ? r.slope(s, token, head) : 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < f.features; i += blockDim.x) {
    double q = 0, k = 0;
    for (int64_t s = first; s < stop; ++s) {
      q += as_key[s - first] * Reference::value(f.k, r.at(s, head) * f.features + i);
      k += as_query[s - first] * Reference::value(f.q, r.at(s, head) * f.features + i);
    }
    r.grad_q[r.at(token, head) * f.features + i] = q, r.grad_k[r.at(token, head) * f.features + i] = k;
  }
  for (int d = threadIdx.x; d < f.head_dim; d += blockDim.x) {
    double sum = 0;
    for (int64_t t = token; t < stop; ++t)
      sum += r.weight(t, token, head, first) / r.denominator[r.at(t, head)] * Reference::value(r.b.grad_y, r.at(t, head) * f.head_dim + d);
    r.grad_v[r.at(token, head) * f.head_dim + d] = sum;
  }
}

void verify(Report& report, const LinearAttentionShape& shape, uint64_t seed) {
  const LinearAttentionProblem problem(shape, seed);
  const LinearAttention& f = problem.p.forward;
  const std::string name = shape.name();
  if (!gpu::linear_attention_takes(f)) return report.no_kernel(name);
  check(gpu::linear_attention_forward(f, {}));
  check(gpu::linear_attention_backward(problem.p, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "linear attention");
  const int64_t heads = f.tokens * f.heads, narrow = heads * f.features, wide = heads * f.head_dim;
  const int64_t longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  const Buffer weights(heads * longest * 8), y(wide * 8), denominator(heads * 8), q(narrow * 8), k(narrow * 8), v(wide * 8);
  const dim3 grid(static_cast<unsigned>(f.tokens), f.heads);
  const Reference reference{problem.p,      longest,        weights.as<double>(), y.as<double>(), denominator.as<double>(),
                            q.as<double>(), k.as<double>(), v.as<double>()};
  score<<<grid, 128>>>(f, longest, weights.as<double>());
  forward<<<grid, 128>>>(reference);
  backward<<<grid, 128>>>(reference);
  check(cudaDeviceSynchronize(), "reference");
  const double limit = shape.single_tf32 ? 4e-3 : 5e-6;
  report.expect(name + ": y", relative_error(f.y, DType::f32, y.as<double>(), wide), limit);
  report.expect(name + ": denominator", relative_error(f.denominator, DType::f32, denominator.as<double>(), heads), limit);
  report.expect(name + ": q", relative_error(problem.p.grad_q, DType::f32, q.as<double>(), narrow), 2 * limit);
  report.expect(name + ": k", relative_error(problem.p.grad_k, DType::f32, k.as<double>(), narrow), 2 * limit);
  report.expect(name + ": v", relative_error(problem.p.grad_v, DType::f32, v.as<double>(), wide), 2 * limit);
  const auto gradients = [&] {
    return std::vector<std::vector<double>>{download(problem.p.grad_q, DType::f32, narrow), download(problem.p.grad_k, DType::f32, narrow),
                                            download(problem.p.grad_v, DType::f32, wide)};
  };
  const auto bits = gradients();
  check(cudaMemset(problem.p.grad_q, 0xff, narrow * 4), "poison"), check(cudaMemset(problem.p.grad_k, 0xff, narrow * 4), "poison");
  check(cudaMemset(problem.p.grad_v, 0xff, wide * 4), "poison");
  check(gpu::linear_attention_backward(problem.p, problem.scratch.as(), {}));
  check(cudaDeviceSynchronize(), "linear attention");
  report.expect(name + ": the same bits again", gradients() == bits ? 0 : 1, 0);
}

void verify_linear_attention(Report& report) {
  uint64_t seed = 1;
  for (const bool single_tf32 : {false, true}) {
    for (LinearAttentionShape shape : std::vector<LinearAttentionShape>{{{256, 64, 0, 1, 63, 128}, 1, 64, 64},
                                                                        {{70, 129, 65}, 2, 128, 64},
                                                                        {{200, 33}, 1, 128, 128},
                                                                        {{130, 64}, 2, 24, 100},
                                                                        {{77, 20}, 3, 3, 5},
                                                                        {{100, 40}, 1, 67, 35},
                                                                        {{90, 30}, 2, 126, 127},
                                                                        {{520}, 1, 16, 64},
                                                                        {{0, 128, 0, 128, 0}, 2, 64, 48},
                                                                        {{32, 33, 96, 97, 129}, 1, 8, 48}}) {
      shape.single_tf32 = single_tf32;
      verify(report, shape, seed++);
      shape.negative = true, shape.eps = 0;
      verify(report, shape, seed++);
    }
  }
}

const DefineFamily<Report> kLinearAttention("linear_attention", verify_linear_attention);

}  // namespace
}  // namespace based::tests
