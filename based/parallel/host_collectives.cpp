#include "based/parallel/host_collectives.h"

#include <ATen/Functions.h>

#include <cstring>
#include <functional>

#include "based/core/error.h"

namespace based {
namespace {

// A payload is a header line that describes the operation, then the values.
class HostCollectives final : public Collectives, public std::enable_shared_from_this<HostCollectives> {
 public:
  HostCollectives(int64_t rank, int64_t world, std::unique_ptr<Exchange> exchange)
      : rank_(rank), world_(world), exchange_(std::move(exchange)) {}
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }

  std::unique_ptr<PendingCollective> all_reduce(const Tensor& values) override {
    return start("all_reduce", values, values, [values](const std::vector<Tensor>& parts) { values.copy_(sum(parts).view_as(values)); });
  }
  std::unique_ptr<PendingCollective> reduce_scatter(const Tensor& part, const Tensor& whole) override {
    BASED_ASSERT(whole.numel() == world_ * part.numel());
    return start("reduce_scatter", whole, whole, [part, rank = rank_](std::vector<Tensor> parts) {
      for (Tensor& values : parts) values = values.slice(0, rank * part.numel(), (rank + 1) * part.numel());
      part.copy_(sum(parts).view_as(part));
    });
  }
  std::unique_ptr<PendingCollective> all_gather(const Tensor& whole, const Tensor& part) override {
    BASED_ASSERT(whole.numel() == world_ * part.numel());
    return start("all_gather", part, part, [whole](const std::vector<Tensor>& parts) { whole.view(-1).copy_(at::cat(parts)); });
  }
  std::unique_ptr<PendingCollective> broadcast(const Tensor& values, int64_t root) override {
    BASED_ASSERT(root >= 0 && root < world_);
    return start("broadcast from rank " + std::to_string(root), values, rank_ == root ? values : Tensor(),
                 [values, root](const std::vector<Tensor>& parts) { values.view(-1).copy_(parts[static_cast<size_t>(root)]); });
  }

  void barrier() override { gather("barrier", ""); }
  std::vector<std::string> gather_text(const std::string& text) override { return gather("gather_text", text); }

 private:
  using Finish = std::function<void(const std::vector<Tensor>& parts)>;

  class Pending final : public PendingCollective {
   public:
    Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
    void wait() override {
      if (finish_) std::exchange(finish_, nullptr)();
    }

   private:
    std::function<void()> finish_;
  };

  // Posts the values of `sent` (none if it is undefined). wait() passes the values of all ranks, each flat and with the type of `like`, to
  // `finish`.
  std::unique_ptr<PendingCollective> start(const std::string& name, const Tensor& like, const Tensor& sent, Finish finish) {
    BASED_ASSERT(like.device().is_cpu() && like.is_contiguous());
    const std::string header = name + " of " + std::to_string(like.numel()) + " x " + c10::toString(like.scalar_type()) + "\n";
    std::string payload = header;
    if (sent.defined()) payload.append(static_cast<const char*>(sent.const_data_ptr()), sent.nbytes());
    const int64_t operation = operations_++;
    exchange_->post(operation, payload);
    const auto type = like.scalar_type();
    return std::make_unique<Pending>([self = shared_from_this(), operation, header, type, finish = std::move(finish)] {
      const at::NoGradGuard no_grad;
      std::vector<Tensor> parts;
      for (const std::string& values : self->collect(operation, header, /*patient=*/false)) {
        const Tensor part = at::empty({static_cast<int64_t>(values.size() / c10::elementSize(type))}, type);
        if (!values.empty()) std::memcpy(part.mutable_data_ptr(), values.data(), values.size());
        parts.push_back(part);
      }
      finish(parts);
    });
  }

  std::vector<std::string> gather(const std::string& name, const std::string& text) {
    const int64_t operation = operations_++;
    exchange_->post(operation, name + "\n" + text);
    return collect(operation, name + "\n", /*patient=*/true);
  }

  // The payloads without their headers, which must all equal this rank's.
  std::vector<std::string> collect(int64_t operation, const std::string& header, bool patient) {
    std::vector<std::string> payloads = exchange_->collect(operation, patient);
    for (size_t i = 0; i < payloads.size(); ++i) {
      const std::string theirs = payloads[i].substr(0, payloads[i].find('\n') + 1);
      if (theirs != header)
        throw Error("the ranks are out of step: operation " + std::to_string(operation) + " of rank " + std::to_string(i) + " is " +
                    theirs.substr(0, theirs.size() - 1) + ", of rank " + std::to_string(rank_) + " " + header.substr(0, header.size() - 1));
      payloads[i].erase(0, header.size());
    }
    return payloads;
  }

  static Tensor sum(const std::vector<Tensor>& parts) {
    const auto type = parts[0].scalar_type();
    Tensor total = parts[0].to(type == torch::kBFloat16 || type == torch::kHalf ? torch::kFloat : type);
    for (size_t i = 1; i < parts.size(); ++i) total.add_(parts[i]);
    return total;
  }

  const int64_t rank_, world_;
  const std::unique_ptr<Exchange> exchange_;
  int64_t operations_ = 0;
};

}  // namespace

std::shared_ptr<Collectives> make_host_collectives(int64_t rank, int64_t world, std::unique_ptr<Exchange> exchange) {
  return std::make_shared<HostCollectives>(rank, world, std::move(exchange));
}

}  // namespace based
