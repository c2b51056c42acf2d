// Without torch: the checks of Taylor attention, for tensors of LibTorch or of its stable interface.
#pragma once
#include <optional>

#include "based/kernels/taylor/taylor.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// q and k [tokens, heads, feature_dim], v [tokens, heads, head_dim]: shapes, types and devices. Throws Error.
template <class Tensor>
void check_taylor_qkv(const char* op, const Tensor& q, const Tensor& k, const Tensor& v) {
  require_floating(op, "q", q);
  require_shape(op, "q", q, {-1, -1, -1});
  require(q.size(2) >= 1 && q.size(2) <= 64, op, "feature_dim must be 1..64, got ", q.size(2));
  require_like(op, "k", k, q);
  require_like(op, "v", v, q);
  require_shape(op, "k", k, q.sizes());
  require_shape(op, "v", v, {q.size(0), q.size(1), -1});
  require(v.size(2) >= 1, op, "head_dim must be at least 1, got ", v.size(2));
}

// kv_state [rows, heads, features, head_dim] and k_state [rows, heads, features] in the type of sums; rows −1: any number.
template <class Tensor>
void check_taylor_state(const char* op, const Tensor& kv_state, const Tensor& k_state, int64_t rows, const Tensor& q, const Tensor& v) {
  const int64_t features = kernels::packed_features(q.size(2));
  require_shape(op, "kv_state", kv_state, {rows, q.size(1), features, v.size(2)});
  require_shape(op, "k_state", k_state, {rows, q.size(1), features});
  require_type(op, "kv_state", kv_state, sum_type(q));
  require_type(op, "k_state", k_state, sum_type(q));
}

// decay, where given: floating [heads], on the CPU each rate in (0, 1]. to_doubles(tensor) converts it to contiguous fp64. Throws Error.
template <class Tensor, class ToDoubles>
void check_taylor_decay(const char* op, const std::optional<Tensor>& decay, const Tensor& q, ToDoubles to_doubles) {
  if (!decay) return;
  require_shape(op, "decay", *decay, {q.size(1)});
  require_floating(op, "decay", *decay);
  if (!decay->is_cpu()) return;  // reading values would wait for the device
  const Tensor rates = to_doubles(*decay);
  const double* values = rates.template const_data_ptr<double>();
  for (int64_t head = 0; head < rates.numel(); ++head)
    require(values[head] > 0 && values[head] <= 1, op, "decay must be in (0, 1], got ", values[head]);
}

}  // namespace based::ops
