#include "based/core/profile.h"

#include <nvtx3/nvToolsExt.h>

namespace based::runtime {
namespace {

void push_nvtx(const char* name) { nvtxRangePushA(name); }
void pop_nvtx() { nvtxRangePop(); }

[[maybe_unused]] const bool kNvtxRanges = [] {
  profile_hooks().push = push_nvtx;
  profile_hooks().pop = pop_nvtx;
  return true;
}();

}  // namespace

}  // namespace based::runtime
