#include "based/parallel/store.h"

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <thread>

#include "based/core/error.h"

namespace based {
namespace {

constexpr size_t kPartBytes = 4 << 20;  // TCPStore refuses values of more than 8 MiB

bool user_sets_log_level() { return std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr; }

// c10d logs each failed attempt to connect as an error, with a stack. The error that connect_store() throws says as much in one line.
class QuietC10d {
 public:
  QuietC10d() {
    if (!user_sets_log_level()) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  }
  ~QuietC10d() { FLAGS_caffe2_log_level = before_; }
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  const int before_ = FLAGS_caffe2_log_level;
};

class StoreExchange final : public Exchange {
 public:
  StoreExchange(StoreHandle store, const RankEnvironment& rank, std::chrono::milliseconds timeout, std::chrono::milliseconds patience)
      : store_(std::move(store)), rank_(rank), timeout_(timeout), patience_(patience) {}

  void post(int64_t operation, const std::string& payload) override {
    own_[operation] = payload;
    with_store([&] {
      const std::string key = key_of(operation, rank_.rank);
      const size_t parts = count_parts(payload.size());
      for (size_t part = 0; part < parts; ++part) store_->set(key + std::to_string(part), payload.substr(part * kPartBytes, kPartBytes));
      store_->set(key + "bytes", std::to_string(payload.size()));
    });
  }

  std::vector<std::string> collect(int64_t operation, bool patient) override {
    await_payloads(operation, patient ? patience_ : timeout_);
    std::vector<std::string> payloads;
    with_store([&] {
      for (int64_t rank = 0; rank < rank_.world; ++rank)
        payloads.push_back(rank == rank_.rank ? std::move(own_[operation]) : read(key_of(operation, rank)));
      own_.erase(operation);
      if (store_->add(prefix(operation) + "readers", 1) == rank_.world) remove(operation, payloads);
    });
    return payloads;
  }

 private:
  static std::string prefix(int64_t operation) { return std::to_string(operation) + "/"; }
  static std::string key_of(int64_t operation, int64_t rank) { return prefix(operation) + std::to_string(rank) + "/"; }
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
      const std::string key = key_of(operation, static_cast<int64_t>(rank));
      for (size_t part = 0; part < count_parts(payloads[rank].size()); ++part) store_->deleteKey(key + std::to_string(part));
      store_->deleteKey(key + "bytes");
    }
    store_->deleteKey(prefix(operation) + "readers");
  }

  template <class Requests>
  void with_store(const Requests& requests) const {
    try {
      requests();
    } catch (const std::exception& error) {
      std::this_thread::sleep_for(kWatchPatience);
      throw Error(store_failure(rank_, error));
    }
  }

  void await_payloads(int64_t operation, std::chrono::milliseconds limit) {
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < rank_.world; ++rank) keys.push_back(key_of(operation, rank) + "bytes");
    try {
      return store_->wait(keys, limit);
    } catch (const std::exception&) {  // the time has passed, or the connection is lost, which the next request finds out
    }
    std::string absent;
    with_store([&] { absent = absent_ranks(*store_, prefix(operation), "/bytes", rank_.world); });
    throw Error(absent + " did not take part in operation " + std::to_string(operation) + " within " +
                std::to_string(limit.count() / 1000) + " s");
  }

  const StoreHandle store_;
  const RankEnvironment rank_;
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
  silence_store_warnings();
  const QuietC10d quiet;
  try {
    return c10::make_intrusive<c10d::PrefixStore>("based/" + rank.attempt, c10::make_intrusive<c10d::TCPStore>(rank.address, options));
  } catch (const std::exception& error) {
    if (serve)
      throw Error("cannot serve " + store_place(rank) +
                  " (MASTER_ADDR:MASTER_PORT): rank 0 was started twice, or another program "
                  "uses the port, or MASTER_ADDR is not this host: " +
                  store_message(error));
    throw Error("nothing serves " + store_place(rank) + " (MASTER_ADDR:MASTER_PORT): is rank 0 running there? " + store_message(error));
  }
}

std::string store_place(const RankEnvironment& rank) {
  return "the store of this job at " + rank.address + ":" + std::to_string(rank.port);
}

std::string store_server(const RankEnvironment& rank) { return rank.store_is_served ? "the process that started the ranks" : "rank 0"; }

std::string store_failure(const RankEnvironment& rank, const std::exception& error) {
  return store_place(rank) + " does not answer: " + store_server(rank) + ", which serves it, has ended (" + store_message(error) + ")";
}

void silence_store_warnings() {
  if (!user_sets_log_level()) FLAGS_caffe2_log_level = c10::GLOG_ERROR;
}

std::unique_ptr<Exchange> make_store_exchange(StoreHandle store, const RankEnvironment& rank, std::chrono::milliseconds timeout,
                                              std::chrono::milliseconds patience) {
  return std::make_unique<StoreExchange>(std::move(store), rank, timeout, patience);
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
