// Sequences with states for the tests of stores and caches.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/generate/engine.h"
#include "tests/generate/texts.h"

namespace based {

constexpr const char* kModelHash = "00112233445566778899aabbccddeeff";
constexpr const char* kOtherHash = "ff112233445566778899aabbccddeeff";

// The state of a sequence: after all of its tokens but the last one.
inline std::shared_ptr<const SequenceState> state_after(LanguageModel& model, const std::vector<int64_t>& ids) {
  Engine engine(model, {});
  const int64_t sequence = engine.add(ids, {.max_tokens = 0, .keep_state = true});
  while (!engine.idle()) engine.step();
  return std::make_shared<const SequenceState>(engine.take_state(sequence));
}

inline bool equal_states(const SequenceState& a, const SequenceState& b) {
  const auto of_a = a.state.named(), of_b = b.state.named();
  if (a.ids != b.ids || of_a.size() != of_b.size()) return false;
  for (size_t i = 0; i < of_a.size(); ++i)
    if (!torch::equal(of_a[i].value, of_b[i].value)) return false;
  return true;
}

}  // namespace based
