#include "bench/kernels/taylor/problems/taylor.cuh"

#include <cmath>
#include <cstdio>

#include "bench/kernels/taylor/problems/taylor_reference.cuh"

namespace based::bench {
namespace {

using kernels::DType;
using kernels::packed_features;
using kernels::TaylorAttention;
namespace gpu = kernels::cuda;

__global__ void to_float(const double* from, float* to, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x)
    to[i] = static_cast<float>(from[i]);
}

}  // namespace

std::string TaylorShape::name() const {
  char text[80];
  std::snprintf(text, sizeof text, "%s H%d f%d d%d%s%s%s rows",
                dtype == DType::bf16 ? "bf16"
                : single_tf32        ? "tf32"
                                     : "fp32",
                heads, feature_dim, head_dim, state ? " state" : "",
                !decay              ? ""
                : decay_denominator ? " decay"
                                    : " decay of the numerator",
                settled ? " settled" : "");
  std::string s = text;
  for (size_t i = 0; i < lengths.size() && i < 5; ++i) {
    s += ' ';
    s += std::to_string(lengths[i]);
  }
  if (lengths.size() > 5) s += " …";
  return s;
}

TaylorProblem::TaylorProblem(const TaylorShape& shape, uint64_t seed, int64_t states) {
  std::vector<int64_t> starts{0}, slots;
  for (const int64_t n : shape.lengths) starts.push_back(starts.back() + n);
  p.rows = static_cast<int64_t>(shape.lengths.size()), p.tokens = starts.back();
  p.heads = shape.heads, p.feature_dim = shape.feature_dim, p.head_dim = shape.head_dim, p.dtype = shape.dtype;
  p.state_is_private = shape.settled, p.single_tf32 = shape.single_tf32;
  const int64_t narrow = p.tokens * p.heads * p.feature_dim, wide = p.tokens * p.heads * p.head_dim;
  const double scale = 1.2 / std::pow(p.feature_dim, 0.25);
  q = random_buffer(narrow, p.dtype, scale, 5 * seed), k = random_buffer(narrow, p.dtype, scale, 5 * seed + 1);
  v = random_buffer(wide, p.dtype, 1, 5 * seed + 2);
  y = Buffer(wide * kernels::dtype_size(p.dtype)), denominator = Buffer(p.tokens * p.heads * 4);
  row_start = upload(starts);
  p.q = q.as(), p.k = k.as(), p.v = v.as(), p.y = y.as(), p.denominator = denominator.as<float>();
  p.row_start = row_start.as<int64_t>();
  if (shape.decay) {
    std::vector<float> rates(p.heads);
    for (int h = 0; h < p.heads; ++h) rates[h] = 1 - 0.5F / static_cast<float>(2 << (h % 6));
    decay = upload_floats(rates);
    p.decay = decay.as<float>(), p.decay_denominator = shape.decay_denominator;
  }
  if (shape.state) make_states(shape, seed, states);
  scratch = Buffer(gpu::taylor_attention_scratch(p));
}

void TaylorProblem::make_states(const TaylorShape& shape, uint64_t seed, int64_t states) {
  const int64_t features = packed_features(p.feature_dim), count = p.rows * p.heads * features;
  kv_state = Buffer(count * p.head_dim * 4), k_state = Buffer(count * 4);
  std::vector<int64_t> slots(p.rows);
  for (int64_t r = 0; r < p.rows; ++r) slots[r] = p.rows - 1 - r;
  slot = upload(slots);
  if (states == 0) {
    TaylorShape history = shape;
    history.lengths.assign(p.rows, 7), history.state = false;
    TaylorProblem past(history, seed + 1000);
    Buffer kv(count * p.head_dim * 8), sums(count * 8);
    taylor_reference_state(past.p, kv.as<double>(), sums.as<double>());
    to_float<<<256, 256>>>(kv.as<double>(), kv_state.as<float>(), count * p.head_dim);
    to_float<<<256, 256>>>(sums.as<double>(), k_state.as<float>(), count);
    check(cudaDeviceSynchronize(), "states");
  } else {
    kv_state = random_buffer(count * p.head_dim, DType::f32, 1, seed), k_state = random_buffer(count, DType::f32, 0.01, seed + 7);
  }
  p.kv_state = kv_state.as<float>(), p.k_state = k_state.as<float>(), p.slot = slot.as<int64_t>();
}

TaylorBackwardProblem::TaylorBackwardProblem(const TaylorProblem& problem, const TaylorShape& shape, uint64_t seed) {
  const TaylorAttention& f = problem.p;
  const int64_t size = kernels::dtype_size(f.dtype), narrow = f.tokens * f.heads * f.feature_dim, wide = f.tokens * f.heads * f.head_dim;
  const int64_t state = f.rows * f.heads * packed_features(f.feature_dim);
  p.forward = f;
  grad_y = random_buffer(wide, f.dtype, 1, seed + 31), q = Buffer(narrow * size), k = Buffer(narrow * size), v = Buffer(wide * size);
  p.grad_y = grad_y.as(), p.grad_q = q.as(), p.grad_k = k.as(), p.grad_v = v.as();
  if (shape.state) {
    initial_kv = copy_of(problem.kv_state), initial_k = copy_of(problem.k_state);
    grad_kv = random_buffer(state * f.head_dim, DType::f32, 0.02, seed + 32),
    grad_k_sums = random_buffer(state, DType::f32, 0.02, seed + 33);
    kv = Buffer(state * f.head_dim * 4), k_sums = Buffer(state * 4);
    p.initial_kv_state = initial_kv.as<float>(), p.initial_k_state = initial_k.as<float>();
    p.grad_kv_state = grad_kv.as<float>(), p.grad_k_state = grad_k_sums.as<float>();
    p.grad_initial_kv_state = kv.as<float>(), p.grad_initial_k_state = k_sums.as<float>();
  }
  scratch = Buffer(gpu::taylor_attention_backward_scratch(p));
}

}  // namespace based::bench
