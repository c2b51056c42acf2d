// Without torch: the checks of sampling and the kernels' arguments, from tensors of LibTorch or of its stable interface. Op is a struct
// with the members of Sample or AdjustedLogits.
#pragma once
#include "based/kernels/sampling/adjusted_logits.h"
#include "based/kernels/sampling/sampling.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

template <class Tensor>
void check_logits(const char* op, const Tensor& logits) {
  require(has_kernel(logits), op, "logits must be Float or BFloat16, got ", type_name(logits.scalar_type()));
  require_shape(op, "logits", logits, {-1, -1});
}

// An argument of this type and shape, contiguous. Throws Error.
template <class Tensor, class ScalarType>
void check_sampling_option(const char* op, const char* name, const Tensor& tensor, ScalarType type, std::initializer_list<int64_t> shape) {
  require_type(op, name, tensor, type);
  require_shape(op, name, tensor, shape);
  require(tensor.is_contiguous(), op, name, " must be contiguous");
}

// `options`: the rows of the options and of `seen`; `position` and `token` have a row for each row of the logits.
template <class Op>
void check_sample(const char* op, const Op& in, int64_t options) {
  using ScalarType = decltype(in.logits.scalar_type());
  check_logits(op, in.logits);
  const int64_t rows = in.logits.size(0), vocab = in.logits.size(1);
  require(vocab >= 1, op, "logits must have a column a word, got ", shape_text(in.logits));
  check_sampling_option(op, "token", in.token, ScalarType::Long, {rows});
  check_sampling_option(op, "position", in.position, ScalarType::Long, {rows});
  check_sampling_option(op, "seed", in.seed, ScalarType::Long, {options});
  check_sampling_option(op, "top_k", in.top_k, ScalarType::Long, {options});
  check_sampling_option(op, "temperature", in.temperature, ScalarType::Float, {options});
  check_sampling_option(op, "top_p", in.top_p, ScalarType::Float, {options});
  check_sampling_option(op, "min_p", in.min_p, ScalarType::Float, {options});
  check_sampling_option(op, "penalty", in.penalty, ScalarType::Float, {options});
  check_sampling_option(op, "seen", in.seen, ScalarType::Int, {options, kernels::sample_seen_words(vocab)});
}

template <class Op>
void check_sample(const Op& in) {
  check_sample("sample_", in, in.logits.dim() > 0 ? in.logits.size(0) : 0);
}

// `logits`: those of `in`, with contiguous columns.
template <class Op, class Tensor>
kernels::Sample sample_arguments(const Op& in, const Tensor& logits) {
  kernels::Sample to;
  to.logits = logits.const_data_ptr();
  to.token = in.token.template mutable_data_ptr<int64_t>();
  to.position = in.position.template const_data_ptr<int64_t>();
  to.seed = in.seed.template const_data_ptr<int64_t>();
  to.temperature = in.temperature.template const_data_ptr<float>();
  to.top_k = in.top_k.template const_data_ptr<int64_t>();
  to.top_p = in.top_p.template const_data_ptr<float>();
  to.min_p = in.min_p.template const_data_ptr<float>();
  to.penalty = in.penalty.template const_data_ptr<float>();
  to.seen = reinterpret_cast<uint32_t*>(in.seen.template mutable_data_ptr<int32_t>());
  to.rows = logits.size(0), to.vocab = logits.size(1), to.logits_stride = logits.stride(0);
  to.dtype = kernel_dtype(logits);
  return to;
}

template <class Op>
void check_adjusted_logits(const Op& in) {
  constexpr const char* op = "adjusted_logits";
  using ScalarType = decltype(in.logits.scalar_type());
  check_logits(op, in.logits);
  const int64_t rows = in.logits.size(0), vocab = in.logits.size(1);
  check_sampling_option(op, "presence", in.presence, ScalarType::Float, {rows});
  check_sampling_option(op, "frequency", in.frequency, ScalarType::Float, {rows});
  check_sampling_option(op, "penalty", in.penalty, ScalarType::Float, {rows});
  check_sampling_option(op, "seen", in.seen, ScalarType::Int, {rows, kernels::sample_seen_words(vocab)});
  if (in.bias) check_sampling_option(op, "bias", *in.bias, ScalarType::Float, {rows, vocab});
  if (in.counts) check_sampling_option(op, "counts", *in.counts, ScalarType::Int, {rows, vocab});
}

// `logits`: those of `in`, with contiguous columns.
template <class Op, class Tensor>
kernels::AdjustedLogits adjusted_logits_arguments(const Op& in, const Tensor& logits, const Tensor& adjusted) {
  kernels::AdjustedLogits to;
  to.logits = logits.const_data_ptr();
  to.adjusted = adjusted.template mutable_data_ptr<float>();
  if (in.bias) to.bias = in.bias->template const_data_ptr<float>();
  if (in.counts) to.counts = in.counts->template const_data_ptr<int32_t>();
  to.presence = in.presence.template const_data_ptr<float>();
  to.frequency = in.frequency.template const_data_ptr<float>();
  to.penalty = in.penalty.template const_data_ptr<float>();
  to.seen = reinterpret_cast<const uint32_t*>(in.seen.template const_data_ptr<int32_t>());
  to.rows = logits.size(0), to.vocab = logits.size(1), to.logits_stride = logits.stride(0);
  to.dtype = kernel_dtype(logits);
  return to;
}

}  // namespace based::ops
