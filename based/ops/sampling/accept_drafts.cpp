#include "based/ops/sampling/accept_drafts.h"

#include "based/kernels/sampling/accept_drafts.h"
#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

constexpr const char* kAcceptDraftsOp = "accept_drafts_";

void check(const Tensor& tokens, const Tensor& drafts, const std::vector<AcceptedValue>& values) {
  require_type(kAcceptDraftsOp, "tokens", tokens, at::kLong), require_type(kAcceptDraftsOp, "drafts", drafts, at::kLong);
  require(tokens.dim() == 1 && tokens.is_contiguous() && tokens.size(0) >= drafts.numel(), kAcceptDraftsOp,
          "tokens must be contiguous [drafts or more], got ", tokens.sizes());
  require(drafts.dim() == 1 && drafts.is_contiguous(), kAcceptDraftsOp, "drafts must be contiguous [drafts], got ", drafts.sizes());
  require_on(kAcceptDraftsOp, "drafts", drafts, tokens.device());
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [to, rows] = values[i];
    require_type(kAcceptDraftsOp, "rows", rows, to.scalar_type());
    require(rows.dim() >= 1 && rows.numel() == rows.size(0) * to.numel(), kAcceptDraftsOp, "rows of value ", i, " must be [n, …] like ",
            to.sizes(), ", got ", rows.sizes());
    require(to.is_contiguous() && rows.is_contiguous(), kAcceptDraftsOp, "value ", i, " must be contiguous");
    require_on(kAcceptDraftsOp, "to", to, tokens.device()), require_on(kAcceptDraftsOp, "rows", rows, tokens.device());
  }
}

}  // namespace

void accept_drafts_(const Tensor& tokens, const Tensor& drafts, const std::vector<AcceptedValue>& values) {
  check(tokens, drafts, values);
  const c10::OptionalDeviceGuard guard(tokens.is_cuda() ? std::optional(tokens.device()) : std::nullopt);
  std::vector<kernels::AcceptedRow> rows;
  rows.reserve(values.size());
  for (const AcceptedValue& value : values)
    rows.push_back({value.to.mutable_data_ptr(), value.rows.const_data_ptr(), static_cast<int64_t>(value.to.nbytes()), value.rows.size(0)});
  const auto* table = kernels::launchers<kernels::AcceptDraftsLaunchers>(runtime::kernel_device(tokens));
  require(table != nullptr, kAcceptDraftsOp, "this program has no kernel for ", tokens.device(), "; build it with -DBASED_WITH_CUDA=ON");
  require_ok(table->accept(
      {tokens.const_data_ptr<int64_t>(), drafts.const_data_ptr<int64_t>(), drafts.size(0), rows.data(), static_cast<int64_t>(rows.size())},
      queue_of(tokens)));
}

}  // namespace based::ops
