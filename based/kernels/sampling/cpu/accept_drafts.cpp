#include "based/kernels/sampling/accept_drafts.h"

#include <cstring>

namespace based::kernels::cpu {

Status accept_drafts(const AcceptDrafts& p) {
  const int64_t accepted = accepted_drafts(p.tokens, p.drafts, p.draft_count);
  for (int64_t i = 0; i < p.value_count; ++i) {
    const AcceptedRow& value = p.values[i];
    if (accepted < value.rows && value.count > 0)
      std::memcpy(value.to, static_cast<const char*>(value.from) + accepted * value.count, static_cast<size_t>(value.count));
  }
  return {};
}

namespace {
const DefineLaunchers<AcceptDraftsLaunchers> kAcceptDraftsLaunchers(Device::cpu, {.accept = on_cpu<accept_drafts>});
}

}  // namespace based::kernels::cpu
