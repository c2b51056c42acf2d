// The service's view of a prefix cache: states of prompts that were read before.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "based/generate/sequence.h"

namespace based {

// How a prompt is to be read.
struct PrefixPlan {
  // A state that has read the first tokens of the prompt, fewer than all of it; null: there is none. Its ids begin with these tokens; the
  // service replaces them by the prompt.
  std::shared_ptr<const SequenceState> state;
  // Ascending numbers of tokens, above those that `state` has read and below the prompt's length: insert() is called with the state after
  // each of them. An invariant engine rounds them down to the begins of cells (generate/cells.h).
  std::vector<int64_t> cuts;
  bool keep_end = false;  // insert() is also called with the state after the generated tokens
};

class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  // Called on the engine's thread before a prompt is read: all its tokens, in the order of the sequence. `owner`: GenerationJob::owner.
  virtual PrefixPlan plan(const std::string& owner, std::span<const int64_t> ids) = 0;
  // Called on the engine's thread, with a state that nothing changes afterwards. It has read state.position() of its ids.
  virtual void insert(const std::string& owner, std::shared_ptr<const SequenceState> state) = 0;
};

}  // namespace based
