#include "based/ops/sampling/sample.h"

#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

void check(const Sample& in) {
  constexpr const char* op = "sample_";
  const Tensor& logits = in.logits;
  require(has_kernel(logits), op, "logits must be Float or BFloat16, got ", logits.scalar_type());
  require_shape(op, "logits", logits, {-1, -1});
  require(logits.size(1) >= 1, op, "logits must have a column a word, got ", logits.sizes());
  const auto option = [&](const char* name, const Tensor& tensor, at::ScalarType type) {
    require_type(op, name, tensor, type);
    require_shape(op, name, tensor, {logits.size(0)});
    require(tensor.is_contiguous(), op, name, " must be contiguous");
  };
  option("token", in.token, at::kLong);
  option("position", in.position, at::kLong);
  option("seed", in.seed, at::kLong);
  option("top_k", in.top_k, at::kLong);
  option("temperature", in.temperature, at::kFloat);
  option("top_p", in.top_p, at::kFloat);
  option("min_p", in.min_p, at::kFloat);
  option("penalty", in.penalty, at::kFloat);
  require_type(op, "seen", in.seen, at::kInt);
  require_shape(op, "seen", in.seen, {logits.size(0), kernels::sample_seen_words(logits.size(1))});
  require(in.seen.is_contiguous(), op, "seen must be contiguous");
}

void sample(const Sample& in) {
  check(in);
  const auto* table = launchers_of<kernels::SampleLaunchers>(in.logits);
  require(table != nullptr, "sample_", "this program has no kernel for ", in.logits.device(),
          "; build it with -DBASED_WITH_CUDA=ON, or sample on the CPU");
  const Tensor rows = with_unit_columns(in.logits);
  kernels::Sample to;
  to.logits = rows.const_data_ptr();
  to.token = in.token.mutable_data_ptr<int64_t>();
  to.position = in.position.const_data_ptr<int64_t>();
  to.seed = in.seed.const_data_ptr<int64_t>();
  to.temperature = in.temperature.const_data_ptr<float>();
  to.top_k = in.top_k.const_data_ptr<int64_t>();
  to.top_p = in.top_p.const_data_ptr<float>();
  to.min_p = in.min_p.const_data_ptr<float>();
  to.penalty = in.penalty.const_data_ptr<float>();
  to.seen = reinterpret_cast<uint32_t*>(in.seen.mutable_data_ptr<int32_t>());
  to.rows = in.logits.size(0), to.vocab = in.logits.size(1), to.logits_stride = rows.stride(0);
  to.dtype = kernel_dtype(in.logits);
  require_ok(table->sample(to, queue_of(in.logits)));
}

TORCH_LIBRARY_FRAGMENT(based, m) { define<Sample>(m).meta<check>().kernel<sample>(); }

}  // namespace

void sample_(Tensor token, const Tensor& logits, const SampleOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& [position, seed, top_k, temperature, top_p, min_p, penalty, seen] = options;
  call(Sample{token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen});
}

}  // namespace based::ops
