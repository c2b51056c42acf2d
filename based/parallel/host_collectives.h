// Collectives on CPU tensors, built from one primitive: an exchange of bytes between all ranks.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/parallel/collectives.h"

namespace based {

// Passes one payload of each rank to every rank. Operations are numbered 0, 1, … in the order of their start, which is the same on all
// ranks.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void post(int64_t operation, const std::string& payload) = 0;  // publishes this rank's payload; does not block on other ranks
  // The payloads of all ranks, in the order of the ranks. Blocks until every rank has posted; called once for each operation. `patient`
  // operations may take as long as a checkpoint; others must finish within the collective timeout. Throws Error at the timeout.
  virtual std::vector<std::string> collect(int64_t operation, bool patient) = 0;
};

// Values are added in the order of the ranks, so that every rank gets the same bits; bf16 and fp16 are summed in fp32 and rounded once. The
// work is done in wait(). Throws Error if the ranks call different operations, or one with other shapes or types.
std::shared_ptr<Collectives> make_host_collectives(int64_t rank, int64_t world, std::unique_ptr<Exchange> exchange);

}  // namespace based
