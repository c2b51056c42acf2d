#include "based/ops/sampling/adjusted_logits.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/sampling/sampling_arguments.h"

namespace based::ops {
namespace {

Tensor adjusted_meta(const AdjustedLogits& in) {
  check_adjusted_logits(in);
  return at::empty(in.logits.sizes(), in.logits.options().dtype(at::kFloat));
}

Tensor adjust(const AdjustedLogits& in) {
  const Tensor adjusted = adjusted_meta(in);
  const auto* table = launchers_of<kernels::AdjustedLogitsLaunchers>(in.logits);
  require(table != nullptr, "adjusted_logits", "this program has no kernel for ", in.logits.device(),
          "; build it with -DBASED_WITH_CUDA=ON, or sample on the CPU");
  const Tensor rows = with_unit_columns(in.logits);
  require_ok(table->adjusted_logits(adjusted_logits_arguments(in, rows, adjusted), queue_of(in.logits)));
  return adjusted;
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) { define<AdjustedLogits>(m).meta<adjusted_meta>().kernel<adjust>(); }

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
