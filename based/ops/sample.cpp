#include "based/ops/sample.h"

#include "based/ops/arguments.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "sample_";

void check(const Tensor& token, const Tensor& logits, const SampleOptions& options) {
  require(has_kernel(logits), kOp, "logits must be Float or BFloat16, got ", logits.scalar_type());
  require_shape(kOp, "logits", logits, {-1, -1});
  require(logits.size(1) >= 1, kOp, "logits must have a column a word, got ", logits.sizes());
  const auto option = [&](const char* name, const Tensor& tensor, at::ScalarType type) {
    require_type(kOp, name, tensor, type);
    require_shape(kOp, name, tensor, {logits.size(0)});
    require(tensor.is_contiguous(), kOp, name, " must be contiguous");
  };
  option("token", token, at::kLong);
  option("position", options.position, at::kLong);
  option("seed", options.seed, at::kLong);
  option("top_k", options.top_k, at::kLong);
  option("temperature", options.temperature, at::kFloat);
  option("top_p", options.top_p, at::kFloat);
  option("min_p", options.min_p, at::kFloat);
  option("penalty", options.penalty, at::kFloat);
  require_type(kOp, "seen", options.seen, at::kInt);
  require_shape(kOp, "seen", options.seen, {logits.size(0), kernels::sample_seen_words(logits.size(1))});
  require(options.seen.is_contiguous(), kOp, "seen must be contiguous");
}

void sample_meta(Tensor token, const Tensor& logits, const Tensor& position, const Tensor& seed, const Tensor& top_k,
                 const Tensor& temperature, const Tensor& top_p, const Tensor& min_p, const Tensor& penalty, Tensor seen) {
  check(token, logits, {position, seed, top_k, temperature, top_p, min_p, penalty, seen});
}

void sample_cpu(Tensor token, const Tensor& logits, const Tensor& position, const Tensor& seed, const Tensor& top_k,
                const Tensor& temperature, const Tensor& top_p, const Tensor& min_p, const Tensor& penalty, Tensor seen) {
  sample_with(kernels::cpu::sample, token, logits, {position, seed, top_k, temperature, top_p, min_p, penalty, seen});
}

}  // namespace

void sample_with(kernels::Status (*kernel)(const kernels::Sample&), const Tensor& token, const Tensor& logits,
                 const SampleOptions& options) {
  check(token, logits, options);
  const Tensor rows = with_unit_columns(logits);
  kernels::Sample to;
  to.logits = rows.const_data_ptr();
  to.token = token.mutable_data_ptr<int64_t>();
  to.position = options.position.const_data_ptr<int64_t>();
  to.seed = options.seed.const_data_ptr<int64_t>();
  to.temperature = options.temperature.const_data_ptr<float>();
  to.top_k = options.top_k.const_data_ptr<int64_t>();
  to.top_p = options.top_p.const_data_ptr<float>();
  to.min_p = options.min_p.const_data_ptr<float>();
  to.penalty = options.penalty.const_data_ptr<float>();
  to.seen = reinterpret_cast<uint32_t*>(options.seen.mutable_data_ptr<int32_t>());
  to.rows = logits.size(0), to.vocab = logits.size(1), to.logits_stride = rows.stride(0);
  to.dtype = kernel_dtype(logits);
  require_ok(kernel(to));
}

void sample_(Tensor token, const Tensor& logits, const SampleOptions& options) {
  static const auto op = find_operator<decltype(sample_meta)>("based::sample_");
  const at::AutoDispatchBelowADInplaceOrView guard;
  op.call(std::move(token), logits, options.position, options.seed, options.top_k, options.temperature, options.top_p, options.min_p,
          options.penalty, options.seen);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "sample_(Tensor(a!) token, Tensor logits, Tensor position, Tensor seed, Tensor top_k, Tensor temperature, Tensor top_p, "
      "Tensor min_p, Tensor penalty, Tensor(b!) seen) -> ()");
}

TORCH_LIBRARY_IMPL(based, CPU, m) { m.impl("sample_", sample_cpu); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("sample_", sample_meta); }

}  // namespace
}  // namespace based::ops
