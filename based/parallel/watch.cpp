#include "based/parallel/watch.h"

#include <unistd.h>

#include "based/core/log.h"

namespace based {
namespace {

using WatchClock = std::chrono::steady_clock;

constexpr const char* kStopKey = "stop";

}  // namespace

Watch::Watch(StoreHandle store, int64_t rank, int64_t world, WatchOptions options)
    : store_(std::move(store)), rank_(rank), world_(world), options_(options) {
  if (options_.heartbeats) store_->set(process_key(rank_), SiblingProcesses::own_description());
  beat();
  thread_ = std::thread([this] { run(); });
}

std::string Watch::alive_key(int64_t rank) { return "alive/" + std::to_string(rank); }
std::string Watch::process_key(int64_t rank) { return "process/" + std::to_string(rank); }

void Watch::beat() {
  if (options_.heartbeats) store_->add(alive_key(rank_), 1);
}

void Watch::run() {
  auto last_beat = WatchClock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.poll, [this] { return ending_; })) {
    lock.unlock();
    try {
      if (store_->check({kStopKey})) exit_because(store_->get_to_str(kStopKey));
      if (options_.heartbeats && joined_) watch_processes();
      if (options_.heartbeats && WatchClock::now() - last_beat >= options_.beat) {
        last_beat = WatchClock::now();
        beat();
        if (joined_) compare_heartbeats();
      }
    } catch (const std::exception& error) {
      exit_because("the store of this job does not answer, so the process that serves it has ended: " + store_message(error));
    }
    lock.lock();
  }
}

void Watch::compare_heartbeats() {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < world_; ++rank) keys.push_back(alive_key(rank));
  const std::vector<std::vector<uint8_t>> values = store_->multiGet(keys);
  const auto now = WatchClock::now();
  heartbeats_.resize(values.size(), {"", now});
  for (size_t i = 0; i < values.size(); ++i) {
    Heartbeat& last = heartbeats_[i];
    const std::string value(values[i].begin(), values[i].end());
    if (value != last.value) last = {value, now};
    if (value == kDone || now - last.changed < options_.silence) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - last.changed).count();
    stop_all_because("rank " + std::to_string(i) + " has sent no heartbeat for " + std::to_string(seconds) + " s");
  }
}

// A rank that fails says so before it ends, and one that has done its work, too.
void Watch::watch_processes() {
  if (!processes_) {
    processes_.emplace();
    for (int64_t rank = 0; rank < world_; ++rank)
      if (store_->check({process_key(rank)})) processes_->add(rank, store_->get_to_str(process_key(rank)));
  }
  for (const int64_t rank : processes_->take_ended()) {
    if (store_->check({kStopKey})) exit_because(store_->get_to_str(kStopKey));
    if (store_->get_to_str(alive_key(rank)) == kDone) continue;
    stop_all_because("the process of rank " + std::to_string(rank) + " has ended without saying why, as one that is killed does");
  }
}

void Watch::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watch::stop_all_because(const std::string& reason) {
  store_->set(kStopKey, reason);
  exit_because(reason);
}

void Watch::exit_because(const std::string& reason) {
  log_error("this rank ends because another one did: " + reason);
  _exit(kConsequenceExit);
}

}  // namespace based
