// Tokens whose updates have not been added to a state yet, or inputs that a state does not have yet, stored beside it. The engine owns
// them. The state has its value only after a flush.
#pragma once
#include "based/runtime/torch.h"

namespace based::decode {

class PendingTokens {
 public:
  virtual ~PendingTokens() = default;
  virtual void flush(const at::Tensor& slots) = 0;   // adds the pending tokens of these slots, int64 [n], to the state
  virtual void forget(const at::Tensor& slots) = 0;  // drops the pending tokens of these slots: another sequence uses their state
  virtual int64_t bytes() const = 0;                 // size for all slots
  virtual int64_t rounded_bytes() const = 0;         // the part of bytes() that is a rounded copy of the state
  virtual int64_t replaced_bytes() const = 0;        // bytes of the state that steps do not access; they access half as many here
};

}  // namespace based::decode
