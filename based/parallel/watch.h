// A thread of each rank that ends the process when another rank of the job has ended.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "based/parallel/sibling_processes.h"
#include "based/parallel/store.h"

namespace based {

// The exit code of a rank that ended only because another one did.
inline constexpr int kConsequenceExit = 75;

// After a failure of the job, the rank that serves the store keeps it for this long, so that the others read the reason.
inline constexpr std::chrono::milliseconds kLastWords{1500};

struct WatchOptions {
  std::chrono::milliseconds poll{500}, beat{5000}, silence{30000};
  std::chrono::milliseconds tick{1000};  // the unit in which the silence of the store is counted
};

// The thread polls the key "stop". If it is set, if the connection to the store fails, if the process of another rank on this host has
// ended, or if another rank sent no heartbeat for `silence`, it logs the reason and calls _exit(kConsequenceExit): the other threads may be
// blocked in a collective. Ranks that launch_ranks has started send no heartbeats, because it watches them itself.
//
// A request blocks if the store's host or the network is lost without a word. A second thread, which asks nothing of the store, ends the
// process in the same way if the first one completes no round for `silence`. It counts its own ticks, so that a process that was stopped
// and continued is not ended for the time in between.
class Watch {
 public:
  Watch(StoreHandle store, const RankEnvironment& rank, WatchOptions options);  // `store`: a connection for this thread alone
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // All ranks have made their Watch: from now on their processes are watched and their heartbeats compared.
  void all_joined() { joined_ = true; }

  void end();  // ends the threads, and with them this rank's heartbeats

  static std::string alive_key(int64_t rank);    // the key of a rank's heartbeats
  static std::string process_key(int64_t rank);  // the key of SiblingProcesses::own_description()
  static constexpr const char* kDone = "done";   // its value when the rank has done its work, so that its silence means nothing

 private:
  void run();
  void watch_store();
  void beat();
  void compare_heartbeats();
  void watch_processes();
  [[noreturn]] void exit_with(const std::string& message) const;
  [[noreturn]] void exit_because(const std::string& reason) const;
  [[noreturn]] void stop_all_because(const std::string& reason);

  const StoreHandle store_;
  const RankEnvironment rank_;
  const bool beats_;
  const WatchOptions options_;
  std::atomic<bool> joined_{false};
  std::atomic<int64_t> rounds_{0};  // those that thread_ has completed
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false, ended_ = false;  // whether thread_ is to end, and has; guarded by mutex_
  struct Heartbeat {
    std::string value;
    std::chrono::steady_clock::time_point changed;
  };
  std::vector<Heartbeat> heartbeats_;  // one for each rank
  std::optional<SiblingProcesses> processes_;
  std::thread store_watcher_, thread_;
};

}  // namespace based
