#include "based/parallel/store.h"

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>

#include "based/core/error.h"

namespace based {
namespace {

constexpr size_t kPartBytes = 4 << 20;  // TCPStore refuses values of more than 8 MiB

// c10d logs each failed attempt to connect, with a stack. The error that connect_store() throws says as much in one line.
class QuietC10d {
 public:
  QuietC10d() { FLAGS_caffe2_log_level = c10::GLOG_FATAL; }
  ~QuietC10d() { FLAGS_caffe2_log_level = before_; }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  const int before_ = FLAGS_caffe2_log_level;
};

class StoreExchange final : public Exchange {
 public:
  StoreExchange(StoreHandle store, int64_t rank, int64_t world, std::chrono::milliseconds timeout, std::chrono::milliseconds patience)
      : store_(std::move(store)), rank_(rank), world_(world), timeout_(timeout), patience_(patience) {}

  void post(int64_t operation, const std::string& payload) override {
    own_[operation] = payload;
    const std::string key = prefix(operation) + std::to_string(rank_) + "/";
    const size_t parts = count_parts(payload.size());
    for (size_t part = 0; part < parts; ++part) store_->set(key + std::to_string(part), payload.substr(part * kPartBytes, kPartBytes));
    store_->set(key + "bytes", std::to_string(payload.size()));
  }

  std::vector<std::string> collect(int64_t operation, bool patient) override {
    const auto limit = patient ? patience_ : timeout_;
    std::vector<std::string> keys, payloads;
    for (int64_t rank = 0; rank < world_; ++rank) keys.push_back(prefix(operation) + std::to_string(rank) + "/bytes");
    try {
      store_->wait(keys, limit);
    } catch (const std::exception& error) {
      throw Error(failure(operation, limit, error));
    }
    for (int64_t rank = 0; rank < world_; ++rank)
      payloads.push_back(rank == rank_ ? std::move(own_[operation]) : read(prefix(operation) + std::to_string(rank) + "/"));
    own_.erase(operation);
    if (store_->add(prefix(operation) + "readers", 1) == world_) remove(operation, payloads);
    return payloads;
  }

 private:
  static std::string prefix(int64_t operation) { return std::to_string(operation) + "/"; }
  static size_t count_parts(size_t bytes) { return (bytes + kPartBytes - 1) / kPartBytes; }

  std::string read(const std::string& key) {
    const size_t bytes = std::stoull(store_->get_to_str(key + "bytes"));
    std::string payload;
    payload.reserve(bytes);
    for (size_t part = 0; part < count_parts(bytes); ++part) {
      const std::vector<uint8_t> values = store_->get(key + std::to_string(part));
      payload.append(reinterpret_cast<const char*>(values.data()), values.size());
    }
    return payload;
  }

  void remove(int64_t operation, const std::vector<std::string>& payloads) {
    for (size_t rank = 0; rank < payloads.size(); ++rank) {
      const std::string key = prefix(operation) + std::to_string(rank) + "/";
      for (size_t part = 0; part < count_parts(payloads[rank].size()); ++part) store_->deleteKey(key + std::to_string(part));
      store_->deleteKey(key + "bytes");
    }
    store_->deleteKey(prefix(operation) + "readers");
  }

  // The store itself may have ended, which the question for the absent ranks finds out.
  std::string failure(int64_t operation, std::chrono::milliseconds limit, const std::exception& error) {
    try {
      return absent_ranks(*store_, prefix(operation), "/bytes", world_) + " did not take part in operation " + std::to_string(operation) +
             " within " + std::to_string(limit.count() / 1000) + " s";
    } catch (const std::exception&) {
      return "the store of this job does not answer: " + store_message(error);
    }
  }

  const StoreHandle store_;
  const int64_t rank_, world_;
  const std::chrono::milliseconds timeout_, patience_;
  std::map<int64_t, std::string> own_;
};

}  // namespace

StoreHandle connect_store(const RankEnvironment& rank, bool serve, std::chrono::milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(rank.port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = patience;
  const QuietC10d quiet;
  const std::string place = rank.address + ":" + std::to_string(rank.port);
  try {
    return c10::make_intrusive<c10d::PrefixStore>("based/" + rank.attempt, c10::make_intrusive<c10d::TCPStore>(rank.address, options));
  } catch (const std::exception& error) {
    if (serve)
      throw Error("cannot serve the store of this job at " + place +
                  " (MASTER_ADDR:MASTER_PORT): rank 0 was started twice, or another program "
                  "uses the port, or MASTER_ADDR is not this host: " +
                  store_message(error));
    throw Error("nothing serves the store of this job at " + place + " (MASTER_ADDR:MASTER_PORT): is rank 0 running there? " +
                store_message(error));
  }
}

std::unique_ptr<Exchange> make_store_exchange(StoreHandle store, int64_t rank, int64_t world, std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds patience) {
  return std::make_unique<StoreExchange>(std::move(store), rank, world, timeout, patience);
}

std::string absent_ranks(c10d::Store& store, const std::string& prefix, const std::string& suffix, int64_t world) {
  std::string names;
  for (int64_t rank = 0; rank < world; ++rank)
    if (!store.check({prefix + std::to_string(rank) + suffix})) names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return names;
}

std::string store_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace based
