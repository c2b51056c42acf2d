#include "based/ops/sampling/sample.h"

#include "based/ops/framework/on_device.h"
#include "based/ops/sampling/sampling_arguments.h"

namespace based::ops {
namespace {

void check(const Sample& in) { check_sample(in); }
void check(const SampleTokens& in) {
  constexpr const char* op = "sample_tokens_";
  check_sample(op, in, 1);
  const int64_t rows = in.logits.size(0);
  require(rows >= 1, op, "logits must have at least one row");
  check_sampling_option(op, "drafts", in.drafts, at::kLong, {rows - 1});
  check_sampling_option(op, "seen_after", in.seen_after, at::kInt, {rows, in.seen.size(1)});
}

void launch_draw(const char* op, const Tensor& logits, const kernels::Sample& arguments) {
  const auto* table = launchers_of<kernels::SampleLaunchers>(logits);
  require(table != nullptr, op, "this program has no kernel for ", logits.device(),
          "; build it with -DBASED_WITH_CUDA=ON, or sample on the CPU");
  require_ok(table->sample(arguments, queue_of(logits)));
}

void sample(const Sample& in) {
  check(in);
  const Tensor rows = with_unit_columns(in.logits);
  launch_draw("sample_", rows, sample_arguments(in, rows));
}

void sample_tokens(const SampleTokens& in) {
  check(in);
  const Tensor rows = with_unit_columns(in.logits);
  kernels::Sample arguments = sample_arguments(in, rows);
  arguments.seen_before = reinterpret_cast<const uint32_t*>(in.seen.const_data_ptr<int32_t>());
  arguments.seen = reinterpret_cast<uint32_t*>(in.seen_after.mutable_data_ptr<int32_t>());
  arguments.drafts = in.drafts.const_data_ptr<int64_t>();
  launch_draw("sample_tokens_", rows, arguments);
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<Sample>(m).meta<check>().kernel<sample>();
  define<SampleTokens>(m).meta<check>().kernel<sample_tokens>();
}

}  // namespace

void sample_(Tensor token, const Tensor& logits, const SampleOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& [position, seed, top_k, temperature, top_p, min_p, penalty, seen] = options;
  call(Sample{token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen});
}

void sample_tokens_(Tensor token, const Tensor& logits, const SampleOptions& options, const Tensor& drafts, Tensor seen_after) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto& [position, seed, top_k, temperature, top_p, min_p, penalty, seen] = options;
  call(SampleTokens{token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen, drafts, seen_after});
}

}  // namespace based::ops
