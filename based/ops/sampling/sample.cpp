#include "based/ops/sampling/sample.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/sampling/sampling_arguments.h"

namespace based::ops {
namespace {

void check(const Sample& in) { check_sample(in); }

void sample(const Sample& in) {
  check(in);
  const auto* table = launchers_of<kernels::SampleLaunchers>(in.logits);
  require(table != nullptr, "sample_", "this program has no kernel for ", in.logits.device(),
          "; build it with -DBASED_WITH_CUDA=ON, or sample on the CPU");
  const Tensor rows = with_unit_columns(in.logits);
  require_ok(table->sample(sample_arguments(in, rows), queue_of(in.logits)));
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) { define<Sample>(m).meta<check>().kernel<sample>(); }

}  // namespace

void sample_(Tensor token, const Tensor& logits, const SampleOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& [position, seed, top_k, temperature, top_p, min_p, penalty, seen] = options;
  call(Sample{token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen});
}

}  // namespace based::ops
