#include "based/ops/sampling/adjusted_logits.h"

#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

void check(const AdjustedLogits& in) {
  constexpr const char* op = "adjusted_logits";
  const Tensor& logits = in.logits;
  require(has_kernel(logits), op, "logits must be Float or BFloat16, got ", logits.scalar_type());
  require_shape(op, "logits", logits, {-1, -1});
  const auto option = [&](const char* name, const Tensor& tensor, at::ScalarType type, at::IntArrayRef shape) {
    require_type(op, name, tensor, type);
    require_shape(op, name, tensor, shape);
    require(tensor.is_contiguous(), op, name, " must be contiguous");
  };
  const int64_t rows = logits.size(0), vocab = logits.size(1);
  option("presence", in.presence, at::kFloat, {rows});
  option("frequency", in.frequency, at::kFloat, {rows});
  option("penalty", in.penalty, at::kFloat, {rows});
  option("seen", in.seen, at::kInt, {rows, kernels::sample_seen_words(vocab)});
  if (in.bias) option("bias", *in.bias, at::kFloat, {rows, vocab});
  if (in.counts) option("counts", *in.counts, at::kInt, {rows, vocab});
}

Tensor adjusted_meta(const AdjustedLogits& in) {
  check(in);
  return at::empty(in.logits.sizes(), in.logits.options().dtype(at::kFloat));
}

Tensor adjust(const AdjustedLogits& in) {
  const Tensor adjusted = adjusted_meta(in);
  const auto* table = launchers_of<kernels::AdjustedLogitsLaunchers>(in.logits);
  require(table != nullptr, "adjusted_logits", "this program has no kernel for ", in.logits.device(),
          "; build it with -DBASED_WITH_CUDA=ON, or sample on the CPU");
  const Tensor rows = with_unit_columns(in.logits);
  kernels::AdjustedLogits to;
  to.logits = rows.const_data_ptr();
  to.adjusted = adjusted.mutable_data_ptr<float>();
  if (in.bias) to.bias = in.bias->const_data_ptr<float>();
  if (in.counts) to.counts = in.counts->const_data_ptr<int32_t>();
  to.presence = in.presence.const_data_ptr<float>();
  to.frequency = in.frequency.const_data_ptr<float>();
  to.penalty = in.penalty.const_data_ptr<float>();
  to.seen = reinterpret_cast<const uint32_t*>(in.seen.const_data_ptr<int32_t>());
  to.rows = in.logits.size(0), to.vocab = in.logits.size(1), to.logits_stride = rows.stride(0);
  to.dtype = kernel_dtype(in.logits);
  require_ok(table->adjusted_logits(to, queue_of(in.logits)));
  return adjusted;
}

TORCH_LIBRARY_FRAGMENT(based, m) { define<AdjustedLogits>(m).meta<adjusted_meta>().kernel<adjust>(); }

}  // namespace

Tensor adjusted_logits(const AdjustedLogits& in) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return call(in);
}

Tensor adjusted_logits_reference(const AdjustedLogits& in) {
  const auto column = [](const Tensor& each) { return each.to(at::kDouble).unsqueeze(1); };
  const Tensor token = at::arange(in.logits.size(1), in.seen.options().dtype(at::kLong));
  const Tensor words = in.seen.to(at::kLong).bitwise_and(0xffffffff).index_select(1, token.div(32, "floor"));
  const Tensor is_seen = words.bitwise_right_shift(token.remainder(32)).bitwise_and(1) == 1;
  Tensor x = in.logits.to(at::kDouble);
  if (in.bias) x = x + in.bias->to(at::kDouble);
  x = at::where(is_seen, at::where(x > 0, x / column(in.penalty), x * column(in.penalty)), x);
  if (!in.counts) return x;
  const Tensor counts = in.counts->to(at::kDouble);
  return x - column(in.frequency) * counts - column(in.presence) * (counts > 0).to(at::kDouble);
}

}  // namespace based::ops
