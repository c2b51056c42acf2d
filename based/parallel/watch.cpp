#include "based/parallel/watch.h"

#include <unistd.h>

#include "based/core/log.h"

namespace based {
namespace {

using WatchClock = std::chrono::steady_clock;

constexpr const char* kStopKey = "stop";

}  // namespace

Watch::Watch(StoreHandle store, const RankEnvironment& rank, WatchOptions options)
    : store_(std::move(store)), rank_(rank), beats_(!rank.launched), options_(options) {
  if (beats_) {  // else the store is on this host, and the kernel ends this process with the one that serves it
    store_watcher_ = std::thread([this] { watch_store(); });
  }
  try {
    if (beats_) store_->set(process_key(rank_.rank), SiblingProcesses::own_description());
    beat();
  } catch (...) {
    end();
    throw;
  }
  thread_ = std::thread([this] { run(); });
}

std::string Watch::alive_key(int64_t rank) { return "alive/" + std::to_string(rank); }
std::string Watch::process_key(int64_t rank) { return "process/" + std::to_string(rank); }

void Watch::beat() {
  if (beats_) store_->add(alive_key(rank_.rank), 1);
}

void Watch::run() {
  auto last_beat = WatchClock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.poll, [this] { return ending_; })) {
    lock.unlock();
    try {
      if (store_->check({kStopKey})) exit_because(store_->get_to_str(kStopKey));
      if (beats_ && joined_) watch_processes();
      if (beats_ && WatchClock::now() - last_beat >= options_.beat) {
        last_beat = WatchClock::now();
        beat();
        if (joined_) compare_heartbeats();
      }
    } catch (const std::exception& error) {
      exit_because(store_failure(rank_, error));
    }
    ++rounds_;
    lock.lock();
  }
}

void Watch::watch_store() {
  int64_t rounds = rounds_, ticks = 0;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, options_.tick, [this] { return ended_; })) {
    ticks = rounds == rounds_ ? ticks + 1 : 0;
    rounds = rounds_;
    if (ticks * options_.tick < options_.silence) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(ticks * options_.tick).count();
    exit_with("this rank ends: " + store_place(rank_) + " has not answered for " + std::to_string(seconds) + " s: the host of " +
              store_server(rank_) + ", or the network to it, is gone");
  }
}

void Watch::compare_heartbeats() {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < rank_.world; ++rank) keys.push_back(alive_key(rank));
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
    for (int64_t rank = 0; rank < rank_.world; ++rank)
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
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  wake_.notify_all();
  if (store_watcher_.joinable()) store_watcher_.join();
}

void Watch::stop_all_because(const std::string& reason) {
  store_->set(kStopKey, reason);
  exit_because(reason);
}

void Watch::exit_because(const std::string& reason) const { exit_with("this rank ends because another one did: " + reason); }

void Watch::exit_with(const std::string& message) const {
  log_error(message);
  if (rank_.serves_store) std::this_thread::sleep_for(kLastWords);
  _exit(kConsequenceExit);
}

}  // namespace based
