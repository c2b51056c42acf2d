// The place where parallel/cuda registers collectives on GPUs.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>

#include "based/parallel/collectives.h"

namespace based {

class GpuCollectives : public Collectives {
 public:
  // Closes the connections to the other ranks. All ranks call it, after their last operation. Without this call the
  // job counts as failed: the destructor leaves the connections open, because closing them would block on ranks that do not answer.
  virtual void leave() = 0;
};

struct GpuRank {
  c10::intrusive_ptr<c10d::Store> store;  // with a connection of its own, for the exchange of addresses
  std::shared_ptr<Collectives> host;      // for operations on host values
  torch::Device device = torch::kCPU;     // a GPU, not used by another rank
  std::chrono::milliseconds timeout{};    // for one operation
};

// Null in builds without CUDA.
using GpuCollectivesMaker = std::shared_ptr<GpuCollectives> (*)(const GpuRank& rank);
GpuCollectivesMaker& gpu_collectives();

}  // namespace based
