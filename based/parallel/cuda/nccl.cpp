// Collectives on GPUs by NCCL, through c10d's ProcessGroupNCCL.
#include <torch/csrc/distributed/c10d/Types.hpp>

#define USE_C10D_NCCL
#include <c10/cuda/CUDAGuard.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "based/core/error.h"
#include "based/parallel/gpu_collectives.h"

namespace based {
namespace {

// c10d's own threads end the process if an operation does not finish in time. An operation that is being recorded has no timeout.
class NcclPending final : public PendingCollective {
 public:
  explicit NcclPending(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }  // makes the current stream wait

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// Rethrows the exceptions of `body` as Error.
template <class Body>
auto with_errors(const char* operation, const Body& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    throw Error(std::string("NCCL, ") + operation + ": " + error.what_without_backtrace());
  }
}

class NcclCollectives final : public GpuCollectives {
 public:
  explicit NcclCollectives(const GpuRank& place) : place_(place) {
    setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);  // c10d would first write its log of operations, for up to a minute
    const c10::cuda::CUDAGuard on_device(place.device);
    const auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = place.timeout;
    with_errors("initialisation", [&] {
      group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(place.store, static_cast<int>(rank()), static_cast<int>(world()), options);
      return 0;
    });
    try {
      connect();
    } catch (...) {
      abandon();
      throw;
    }
  }
  ~NcclCollectives() override {
    if (group_ != nullptr) abandon();
  }

  int64_t rank() const override { return place_.host->rank(); }
  int64_t world() const override { return place_.host->world(); }

  std::unique_ptr<PendingCollective> all_reduce(const Tensor& values) override {
    return start("all_reduce", [&] {
      std::vector<Tensor> tensors{values};
      return group_->allreduce(tensors);
    });
  }
  std::unique_ptr<PendingCollective> reduce_scatter(const Tensor& part, const Tensor& whole) override {
    return start("reduce_scatter", [&] {
      Tensor result = part, values = whole;
      return group_->_reduce_scatter_base(result, values);
    });
  }
  std::unique_ptr<PendingCollective> all_gather(const Tensor& whole, const Tensor& part) override {
    return start("all_gather", [&] {
      Tensor result = whole, values = part;
      return group_->_allgather_base(result, values);
    });
  }
  std::unique_ptr<PendingCollective> broadcast(const Tensor& values, int64_t root) override {
    return start("broadcast", [&] {
      std::vector<Tensor> tensors{values};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  void barrier() override { place_.host->barrier(); }
  std::vector<std::string> gather_text(const std::string& text) override { return place_.host->gather_text(text); }

  void leave() override {
    with_errors("closing the connections", [&] {
      group_->shutdown();
      return 0;
    });
    group_.reset();
  }

 private:
  // The first operation connects the ranks, which cannot be recorded. Its sum shows that every rank is there.
  void connect() {
    const Tensor ones = at::ones({1}, at::TensorOptions(place_.device).dtype(torch::kFloat));
    all_reduce(ones)->wait();
    const auto sum = ones.item<float>();
    if (sum != static_cast<float>(world()))
      throw Error("NCCL: the sum of " + std::to_string(world()) + " ones over the ranks is " + std::to_string(sum));
  }

  // For a job that failed: NCCL's destructors would block on the other ranks, so the process will end without them.
  void abandon() {
    static_cast<void>(group_.release());
    on_exit(
        [](int status, void*) {
          std::fflush(nullptr);
          _exit(status);
        },
        nullptr);
  }

  template <class Call>
  std::unique_ptr<PendingCollective> start(const char* name, const Call& call) {
    return std::make_unique<NcclPending>(with_errors(name, call));
  }

  const GpuRank place_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

std::shared_ptr<GpuCollectives> make_nccl(const GpuRank& rank) { return std::make_shared<NcclCollectives>(rank); }
[[maybe_unused]] const GpuCollectivesMaker kMaker = gpu_collectives() = make_nccl;

}  // namespace
}  // namespace based
