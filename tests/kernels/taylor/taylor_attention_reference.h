// Reference of Taylor attention in double precision, forward and backward, for the tests.
#pragma once
#include <cmath>
#include <ostream>
#include <random>
#include <vector>

#include "based/kernels/taylor/taylor.h"
#include "tests/kernels/common/buffer.h"

namespace based::kernels::taylor_test {

struct Case {
  int32_t feature_dim, head_dim;
  std::vector<int64_t> lengths;
  DType dtype = DType::f32;
  bool decay = false, state = false;
  int32_t heads = 2;
  bool decay_denominator = true;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << "feature_dim " << c.feature_dim << " head_dim " << c.head_dim << (c.dtype == DType::f32 ? " f32" : " bf16")
      << (c.decay ? c.decay_denominator ? " decay" : " decay of the numerator" : "") << (c.state ? " state" : "") << " lengths";
  for (int64_t n : c.lengths) out << " " << n;
  return out;
}

// Inputs (rounded to the case's type), gradients of the outputs, and all results.
struct Numbers {
  Reals q, k, v, kv_state, k_state, decay, sums_decay;  // sums_decay: the denominator's
  Reals grad_y, grad_kv_state, grad_k_state;
  Reals y, denominator, final_kv_state, final_k_state;
  Reals grad_q, grad_k, grad_v, grad_initial_kv_state, grad_initial_k_state;
};

struct Sizes {
  int64_t tokens = 0, rows, heads, d, packed, head_dim;
  std::vector<int64_t> row_start{0};
  explicit Sizes(const Case& c)
      : rows(static_cast<int64_t>(c.lengths.size())),
        heads(c.heads),
        d(c.feature_dim),
        packed(packed_features(c.feature_dim)),
        head_dim(c.head_dim) {
    for (int64_t n : c.lengths) row_start.push_back(tokens += n);
  }
};

inline Reals features(const double* x, int64_t d) {
  Reals phi{1.0};
  phi.insert(phi.end(), x, x + d);
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = i; j < d; ++j) phi.push_back(i == j ? x[i] * x[i] / std::sqrt(2.0) : x[i] * x[j]);
  return phi;
}

// grad_x += (dφ/dx)ᵀ grad_phi
inline void add_feature_gradient(const double* x, int64_t d, const Reals& grad_phi, double* grad_x) {
  size_t p = 1;
  for (int64_t i = 0; i < d; ++i) grad_x[i] += grad_phi[p++];
  for (int64_t i = 0; i < d; ++i)
    for (int64_t j = i; j < d; ++j, ++p) {
      const double g = i == j ? grad_phi[p] / std::sqrt(2.0) : grad_phi[p];
      grad_x[i] += g * x[j];
      grad_x[j] += g * x[i];
    }
}

inline double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

inline Numbers make_numbers(const Case& c, unsigned seed) {
  const Sizes size(c);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto tensor = [&](int64_t n, double scale, bool typed) {
    Reals x(static_cast<size_t>(n));
    for (double& value : x) {
      value = rounded(typed ? c.dtype : DType::f32, normal(random) * scale);
    }
    return x;
  };
  Numbers x;
  const double scale = std::pow(static_cast<double>(size.d), -0.25);
  x.q = tensor(size.tokens * size.heads * size.d, scale, true);
  x.k = tensor(size.tokens * size.heads * size.d, scale, true);
  x.v = tensor(size.tokens * size.heads * size.head_dim, 1, true);
  x.grad_y = tensor(size.tokens * size.heads * size.head_dim, 1, true);
  for (int64_t h = 0; h < size.heads; ++h) x.decay.push_back(c.decay ? static_cast<double>(1.0f - 0.02f * static_cast<float>(h + 1)) : 1.0);
  x.sums_decay = c.decay_denominator ? x.decay : Reals(x.decay.size(), 1.0);
  if (!c.state) return x;
  // A state that tokens can produce: the sum over three random ones.
  const int64_t states = size.rows * size.heads;
  x.kv_state.assign(static_cast<size_t>(states * size.packed * size.head_dim), 0);
  x.k_state.assign(static_cast<size_t>(states * size.packed), 0);
  for (int64_t s = 0; s < states; ++s)
    for (int past = 0; past < 3; ++past) {
      const Reals key = tensor(size.d, scale, false), value = tensor(size.head_dim, 1, false), phi = features(key.data(), size.d);
      for (int64_t p = 0; p < size.packed; ++p) {
        double& z = x.k_state[static_cast<size_t>(s * size.packed + p)];
        z = static_cast<double>(static_cast<float>(z + phi[static_cast<size_t>(p)]));
        for (int64_t j = 0; j < size.head_dim; ++j) {
          double& kv = x.kv_state[static_cast<size_t>((s * size.packed + p) * size.head_dim + j)];
          kv = static_cast<double>(static_cast<float>(kv + phi[static_cast<size_t>(p)] * value[static_cast<size_t>(j)]));
        }
      }
    }
  x.grad_kv_state = tensor(states * size.packed * size.head_dim, 0.1, false);
  x.grad_k_state = tensor(states * size.packed, 0.1, false);
  return x;
}

// One head of one row, computed over pairs of tokens, and with explicit features for the state. Adds to x's results.
class ReferenceHead {
 public:
  ReferenceHead(const Sizes& size, Numbers& x, int64_t row, int64_t head)
      : size_(size),
        x_(x),
        head_(head),
        first_(size.row_start[static_cast<size_t>(row)]),
        n_(size.row_start[static_cast<size_t>(row) + 1] - first_),
        state_(row * size.heads + head),
        rate_(x.decay[static_cast<size_t>(head)]),
        sums_rate_(x.sums_decay[static_cast<size_t>(head)]) {}

  void forward() {
    for (int64_t t = 0; t < n_; ++t) {
      double* y = vy(x_.y, t);
      double& denominator = at(x_.denominator, (first_ + t) * size_.heads + head_);
      for (int64_t s = 0; s <= t; ++s) {
        const double a = dot(qk(x_.q, t), qk(x_.k, s), size_.d), w = 1 + a + a * a / 2;
        const double decayed = decay(t - s) * w;
        denominator += sums_decay(t - s) * w;
        for (int64_t j = 0; j < size_.head_dim; ++j) y[j] += decayed * vy(x_.v, s)[j];
      }
      if (!x_.k_state.empty()) {
        const Reals phi = features(qk(x_.q, t), size_.d);
        const double decayed = decay(t + 1), sum_decayed = sums_decay(t + 1);
        for (int64_t p = 0; p < size_.packed; ++p) {
          denominator += sum_decayed * at(phi, p) * at(x_.k_state, state_ * size_.packed + p);
          for (int64_t j = 0; j < size_.head_dim; ++j) y[j] += decayed * at(phi, p) * kv(x_.kv_state, p)[j];
        }
      }
      for (int64_t j = 0; j < size_.head_dim; ++j) y[j] /= denominator;
    }
    for (int64_t p = 0; p < size_.packed; ++p) {
      const int64_t sum = state_ * size_.packed + p;
      const double decayed = decay(n_);
      if (!x_.k_state.empty()) at(x_.final_k_state, sum) = sums_decay(n_) * at(x_.k_state, sum);
      for (int64_t j = 0; j < size_.head_dim && !x_.k_state.empty(); ++j) kv(x_.final_kv_state, p)[j] = decayed * kv(x_.kv_state, p)[j];
    }
    for (int64_t s = 0; s < n_; ++s) {
      const Reals phi = features(qk(x_.k, s), size_.d);
      const double decayed = decay(n_ - 1 - s), sum_decayed = sums_decay(n_ - 1 - s);
      for (int64_t p = 0; p < size_.packed; ++p) {
        at(x_.final_k_state, state_ * size_.packed + p) += sum_decayed * at(phi, p);
        for (int64_t j = 0; j < size_.head_dim; ++j) kv(x_.final_kv_state, p)[j] += decayed * at(phi, p) * vy(x_.v, s)[j];
      }
    }
  }

  void backward() {
    for (int64_t t = 0; t < n_; ++t) {
      const double denominator = at(x_.denominator, (first_ + t) * size_.heads + head_);
      Reals g(vy(x_.grad_y, t), vy(x_.grad_y, t) + size_.head_dim);
      for (double& value : g) value /= denominator;
      const double own = -dot(g.data(), vy(x_.y, t), size_.head_dim);
      for (int64_t s = 0; s <= t; ++s) pair(t, s, g, own);
      if (!x_.k_state.empty()) from_state(t, g, own);
    }
    if (!x_.k_state.empty()) to_state();
  }

 private:
  double decay(int64_t n) const { return std::pow(rate_, static_cast<double>(n)); }
  double sums_decay(int64_t n) const { return std::pow(sums_rate_, static_cast<double>(n)); }
  static double& at(Reals& x, int64_t i) { return x[static_cast<size_t>(i)]; }
  static double at(const Reals& x, int64_t i) { return x[static_cast<size_t>(i)]; }
  double* qk(Reals& x, int64_t t) const { return x.data() + ((first_ + t) * size_.heads + head_) * size_.d; }
  double* vy(Reals& x, int64_t t) const { return x.data() + ((first_ + t) * size_.heads + head_) * size_.head_dim; }
  double* kv(Reals& x, int64_t p) const { return x.data() + (state_ * size_.packed + p) * size_.head_dim; }

  void pair(int64_t t, int64_t s, const Reals& g, double own) {
    const double a = dot(qk(x_.q, t), qk(x_.k, s), size_.d), decayed = decay(t - s);
    const double grad = (decayed * dot(g.data(), vy(x_.v, s), size_.head_dim) + sums_decay(t - s) * own) * (1 + a);
    for (int64_t i = 0; i < size_.d; ++i) {
      qk(x_.grad_q, t)[i] += grad * qk(x_.k, s)[i];
      qk(x_.grad_k, s)[i] += grad * qk(x_.q, t)[i];
    }
    for (int64_t j = 0; j < size_.head_dim; ++j) vy(x_.grad_v, s)[j] += decayed * (1 + a + a * a / 2) * at(g, j);
  }

  void from_state(int64_t t, const Reals& g, double own) {
    const double decayed = decay(t + 1), own_decayed = sums_decay(t + 1) * own;
    const Reals phi = features(qk(x_.q, t), size_.d);
    Reals grad_phi(phi.size());
    for (int64_t p = 0; p < size_.packed; ++p) {
      const int64_t sum = state_ * size_.packed + p;
      at(grad_phi, p) = decayed * dot(kv(x_.kv_state, p), g.data(), size_.head_dim) + own_decayed * at(x_.k_state, sum);
      at(x_.grad_initial_k_state, sum) += own_decayed * at(phi, p);
      for (int64_t j = 0; j < size_.head_dim; ++j) kv(x_.grad_initial_kv_state, p)[j] += decayed * at(phi, p) * at(g, j);
    }
    add_feature_gradient(qk(x_.q, t), size_.d, grad_phi, qk(x_.grad_q, t));
  }

  void to_state() {
    for (int64_t s = 0; s < n_; ++s) {
      const double decayed = decay(n_ - 1 - s), sum_decayed = sums_decay(n_ - 1 - s);
      const Reals phi = features(qk(x_.k, s), size_.d);
      Reals grad_phi(phi.size());
      for (int64_t p = 0; p < size_.packed; ++p) {
        const double* grad = kv(x_.grad_kv_state, p);
        at(grad_phi, p) = decayed * dot(grad, vy(x_.v, s), size_.head_dim) + sum_decayed * at(x_.grad_k_state, state_ * size_.packed + p);
        for (int64_t j = 0; j < size_.head_dim; ++j) vy(x_.grad_v, s)[j] += decayed * at(phi, p) * grad[j];
      }
      add_feature_gradient(qk(x_.k, s), size_.d, grad_phi, qk(x_.grad_k, s));
    }
    const double decayed = decay(n_), sum_decayed = sums_decay(n_);
    for (int64_t p = 0; p < size_.packed; ++p) {
      at(x_.grad_initial_k_state, state_ * size_.packed + p) += sum_decayed * at(x_.grad_k_state, state_ * size_.packed + p);
      for (int64_t j = 0; j < size_.head_dim; ++j) kv(x_.grad_initial_kv_state, p)[j] += decayed * kv(x_.grad_kv_state, p)[j];
    }
  }

  const Sizes& size_;
  Numbers& x_;
  int64_t head_, first_, n_, state_;
  double rate_, sums_rate_;
};

inline void reference(const Case& c, Numbers& x) {
  const Sizes size(c);
  const int64_t states = size.rows * size.heads;
  const auto clear = [](Reals& values, int64_t n) { values.assign(static_cast<size_t>(n), 0.0); };
  clear(x.y, size.tokens * size.heads * size.head_dim);
  clear(x.denominator, size.tokens * size.heads);
  for (Reals* kv : {&x.final_kv_state, &x.grad_initial_kv_state}) clear(*kv, states * size.packed * size.head_dim);
  for (Reals* k : {&x.final_k_state, &x.grad_initial_k_state}) clear(*k, states * size.packed);
  clear(x.grad_q, size.tokens * size.heads * size.d);
  clear(x.grad_k, size.tokens * size.heads * size.d);
  clear(x.grad_v, size.tokens * size.heads * size.head_dim);
  for (int64_t row = 0; row < size.rows; ++row)
    for (int64_t head = 0; head < size.heads; ++head) {
      ReferenceHead work(size, x, row, head);
      work.forward();
      work.backward();
    }
}

}  // namespace based::kernels::taylor_test
