// Collective operations between the ranks of one training job, as NCCL and MPI define them. All ranks call the same operations in the same
// order with tensors of the same shape and type. Tensors are contiguous and on the device that the implementation serves.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "based/runtime/torch.h"

namespace based {

using torch::Tensor;

// An operation that was started. Its tensors must not be read or written until wait() returns.
class PendingCollective {
 public:
  virtual ~PendingCollective() = default;
  // On the CPU, blocks until the operation has finished. On a GPU, makes the current stream wait for it and returns at once.
  virtual void wait() = 0;
};

// An operation that does not finish within the timeout of its job throws Error, naming the ranks that are absent; on a GPU, c10d ends the
// process instead. If another rank ends, this process is ended too, by launch_ranks (launcher.h) or by its own Watch (watch.h).
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int64_t rank() const = 0;   // 0 … world() − 1
  virtual int64_t world() const = 0;  // number of ranks

  // `values` becomes the sum over all ranks. Every rank gets the same bits.
  virtual std::unique_ptr<PendingCollective> all_reduce(const Tensor& values) = 0;
  // `part`, [n], becomes this rank's part of the sum of `whole`, [world · n], over all ranks: elements rank·n … rank·n + n − 1.
  virtual std::unique_ptr<PendingCollective> reduce_scatter(const Tensor& part, const Tensor& whole) = 0;
  // `whole`, [world · n], becomes the `part`s, [n], of all ranks in the order of the ranks. `part` may be this rank's part of `whole`.
  virtual std::unique_ptr<PendingCollective> all_gather(const Tensor& whole, const Tensor& part) = 0;
  // `values` becomes those of rank `root`.
  virtual std::unique_ptr<PendingCollective> broadcast(const Tensor& values, int64_t root) = 0;

  // The following work on host values and block. They do not use the GPU.
  virtual void barrier() = 0;
  virtual std::vector<std::string> gather_text(const std::string& text) = 0;  // element r is the text of rank r; see agree.h
};

// One rank without others: sums and gathers are copies.
std::shared_ptr<Collectives> make_single_rank();

// The ranks of one process, one thread each, on CPU tensors: for tests of code that uses Collectives. Element r is the object of rank r.
std::vector<std::shared_ptr<Collectives>> make_thread_ranks(int64_t world);

}  // namespace based
