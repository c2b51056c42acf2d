#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "based/core/error.h"
#include "based/parallel/host_collectives.h"

namespace based {
namespace {

// The payloads of operations that some thread has not collected yet.
class SharedPayloads {
 public:
  explicit SharedPayloads(int64_t world) : world_(static_cast<size_t>(world)) {}

  void post(int64_t operation, int64_t rank, const std::string& payload) {
    const std::lock_guard lock(mutex_);
    Operation& entry = operations_[operation];
    entry.payloads.resize(world_);
    entry.payloads[static_cast<size_t>(rank)] = payload;
    ++entry.posted;
    changed_.notify_all();
  }

  std::vector<std::string> collect(int64_t operation) {
    std::unique_lock lock(mutex_);
    Operation& entry = operations_[operation];
    const auto complete = [&] { return entry.posted == world_; };
    if (!changed_.wait_for(lock, std::chrono::minutes(2), complete)) throw Error("a thread of this job called no collective for 120 s");
    std::vector<std::string> payloads = entry.payloads;
    if (++entry.collected == world_) operations_.erase(operation);
    return payloads;
  }

 private:
  struct Operation {
    std::vector<std::string> payloads;
    size_t posted = 0, collected = 0;
  };
  const size_t world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Operation> operations_;
};

class ThreadExchange final : public Exchange {
 public:
  ThreadExchange(int64_t rank, std::shared_ptr<SharedPayloads> shared) : rank_(rank), shared_(std::move(shared)) {}
  void post(int64_t operation, const std::string& payload) override { shared_->post(operation, rank_, payload); }
  std::vector<std::string> collect(int64_t operation, bool /*patient*/) override { return shared_->collect(operation); }

 private:
  const int64_t rank_;
  const std::shared_ptr<SharedPayloads> shared_;
};

// Serves tensors on any device.
class SingleRank final : public Collectives {
 public:
  int64_t rank() const override { return 0; }
  int64_t world() const override { return 1; }
  std::unique_ptr<PendingCollective> all_reduce(const Tensor& /*values*/) override { return std::make_unique<Done>(); }
  std::unique_ptr<PendingCollective> reduce_scatter(const Tensor& part, const Tensor& whole) override { return copy(part, whole); }
  std::unique_ptr<PendingCollective> all_gather(const Tensor& whole, const Tensor& part) override { return copy(whole, part); }
  std::unique_ptr<PendingCollective> broadcast(const Tensor& /*values*/, int64_t root) override {
    BASED_ASSERT(root == 0);
    return std::make_unique<Done>();
  }
  void barrier() override {}
  std::vector<std::string> gather_text(const std::string& text) override { return {text}; }

 private:
  class Done final : public PendingCollective {
   public:
    void wait() override {}
  };

  static std::unique_ptr<PendingCollective> copy(const Tensor& result, const Tensor& values) {
    const at::NoGradGuard no_grad;
    if (result.const_data_ptr() != values.const_data_ptr()) result.copy_(values.view_as(result));
    return std::make_unique<Done>();
  }
};

}  // namespace

std::shared_ptr<Collectives> make_single_rank() { return std::make_shared<SingleRank>(); }

std::vector<std::shared_ptr<Collectives>> make_thread_ranks(int64_t world) {
  const auto shared = std::make_shared<SharedPayloads>(world);
  std::vector<std::shared_ptr<Collectives>> ranks;
  for (int64_t rank = 0; rank < world; ++rank)
    ranks.push_back(make_host_collectives(rank, world, std::make_unique<ThreadExchange>(rank, shared)));
  return ranks;
}

}  // namespace based
