// Tokens that a state has not taken in yet, beside it: they belong to whoever makes the steps, and the state's value is what it is once it
// has been flushed.
#pragma once
#include "based/ops/torch.h"

namespace based::decode {

class PendingTokens {
 public:
  virtual ~PendingTokens() = default;
  virtual void flush(const at::Tensor& slots) = 0;   // the state at these slots, int64 [n], takes in what waits there
  virtual void forget(const at::Tensor& slots) = 0;  // nothing is pending there: the state is that of another sequence
  virtual int64_t bytes() const = 0;                 // of all slots
};

}  // namespace based::decode
