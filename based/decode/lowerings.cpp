#include "based/decode/step_kernel.h"

namespace based::decode {

#define BASED_LOWERINGS(name) std::span<const Lowering> lowerings_of_##name();
#include "based/decode/lowerings.def"
#undef BASED_LOWERINGS

const Lowering* find_lowering(const std::string& op) {
#define BASED_LOWERINGS(name)                            \
  for (const Lowering& lowering : lowerings_of_##name()) \
    if (op == lowering.op) return &lowering;
#include "based/decode/lowerings.def"
#undef BASED_LOWERINGS
  return nullptr;
}

}  // namespace based::decode
