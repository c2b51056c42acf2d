#include <cmath>

#include "bench/kernels/linear_attention/problems/linear_attention.cuh"

namespace based::bench {
namespace {

using kernels::DType;

// Features of one sign, as most feature maps give.
Buffer features(int64_t count, double sign, uint64_t seed) {
  std::vector<float> values;
  for (const double x : download(random_buffer(count, DType::f32, 1, seed).as(), DType::f32, count))
    values.push_back(static_cast<float>(sign * std::abs(x)));
  return upload_floats(values);
}

}  // namespace

std::string LinearAttentionShape::name() const {
  std::string text = single_tf32 ? "tf32" : "fp32";
  text += " H" + std::to_string(heads) + " f" + std::to_string(features) + " d" + std::to_string(head_dim) + (negative ? " negative" : "");
  text += " rows";
  for (const int64_t length : lengths) text += ' ' + std::to_string(length);
  return text;
}

LinearAttentionProblem::LinearAttentionProblem(const LinearAttentionShape& shape, uint64_t seed) {
  std::vector<int64_t> starts{0};
  for (const int64_t n : shape.lengths) starts.push_back(starts.back() + n);
  kernels::LinearAttention& f = p.forward;
  f.rows = static_cast<int64_t>(shape.lengths.size()), f.tokens = starts.back();
  f.heads = shape.heads, f.features = shape.features, f.head_dim = shape.head_dim;
  f.eps = shape.eps, f.single_tf32 = shape.single_tf32;
  const int64_t narrow = f.tokens * f.heads * f.features, wide = f.tokens * f.heads * f.head_dim;
  q = features(narrow, shape.negative ? -1 : 1, 5 * seed), k = features(narrow, 1, 5 * seed + 1);
  v = random_buffer(wide, DType::f32, 1, 5 * seed + 2), grad_y = random_buffer(wide, DType::f32, 1, 5 * seed + 3);
  y = Buffer(wide * 4), denominator = Buffer(f.tokens * f.heads * 4), row_start = upload(starts);
  grad_q = Buffer(narrow * 4), grad_k = Buffer(narrow * 4), grad_v = Buffer(wide * 4);
  f.q = q.as(), f.k = k.as(), f.v = v.as(), f.y = y.as(), f.denominator = denominator.as<float>();
  f.row_start = row_start.as<int64_t>();
  p.grad_y = grad_y.as(), p.grad_q = grad_q.as(), p.grad_k = grad_k.as(), p.grad_v = grad_v.as();
  scratch = Buffer(kernels::cuda::linear_attention_backward_scratch(p));
}

}  // namespace based::bench
