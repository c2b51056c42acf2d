// torch.ops.based: sampling.
#include "based/ops/sampling/sampling_arguments.h"
#include "stable.h"

namespace based::python {
namespace {

using kernels::AdjustedLogitsLaunchers;
using kernels::SampleLaunchers;

struct Adjusted {
  Tensor logits, presence, frequency, penalty, seen;
  OptionalTensor bias, counts;
};

struct Draw {
  Tensor token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen;
};

Tensor adjusted_logits(const Tensor& logits, const Tensor& presence, const Tensor& frequency, const Tensor& penalty, const Tensor& seen,
                       const OptionalTensor& bias, const OptionalTensor& counts) {
  constexpr const char* kOp = "adjusted_logits";
  const Adjusted in{logits, presence, frequency, penalty, seen, bias, counts};
  ops::check_adjusted_logits(in);
  const auto* table = kernels::launchers<AdjustedLogitsLaunchers>(kernel_device(logits));
  require(table != nullptr, kOp, "this wheel has no kernel for ", device_text(logits.device()));
  const Tensor rows = with_unit_columns(logits), adjusted = empty(sizes_of(logits), logits, ScalarType::Float);
  require_ok(kOp, table->adjusted_logits(ops::adjusted_logits_arguments(in, rows, adjusted), queue_of(logits)), logits);
  return adjusted;
}

void sample(const Tensor& token, const Tensor& logits, const Tensor& position, const Tensor& seed, const Tensor& top_k,
            const Tensor& temperature, const Tensor& top_p, const Tensor& min_p, const Tensor& penalty, const Tensor& seen) {
  constexpr const char* kOp = "sample_";
  const Draw in{token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen};
  ops::check_sample(in);
  const auto* table = kernels::launchers<SampleLaunchers>(kernel_device(logits));
  require(table != nullptr, kOp, "this wheel has no kernel for ", device_text(logits.device()));
  const Tensor rows = with_unit_columns(logits);
  require_ok(kOp, table->sample(ops::sample_arguments(in, rows), queue_of(logits)), logits);
}

void register_kernels(Library& m) {
  implement<adjusted_logits>(m, "adjusted_logits");
  implement<sample>(m, "sample_");
}

STABLE_TORCH_LIBRARY_FRAGMENT(based, m) {
  // Composed of other operators in Python.
  m.def("most_likely(Tensor hidden, Tensor weight, int vocab_size) -> Tensor");
  // Kernels.
  m.def(
      "adjusted_logits(Tensor logits, Tensor presence, Tensor frequency, Tensor penalty, Tensor seen, Tensor? bias=None, Tensor? "
      "counts=None) -> Tensor");
  m.def(
      "sample_(Tensor(a!) token, Tensor logits, Tensor position, Tensor seed, Tensor top_k, Tensor temperature, Tensor top_p, Tensor "
      "min_p, Tensor penalty, Tensor(b!) seen) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(based, CPU, m) { register_kernels(m); }
STABLE_TORCH_LIBRARY_IMPL(based, CUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace based::python
