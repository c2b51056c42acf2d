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

struct WatchOptions {
  bool heartbeats = true;  // whether the ranks watch each other; launch_ranks watches its own
  std::chrono::milliseconds poll{500}, beat{5000}, silence{30000};
};

// The thread polls the key "stop". If it is set, if the store does not answer, if the process of another rank on this host has ended, or if
// another rank sent no heartbeat for `silence`, it logs the reason and calls _exit(kConsequenceExit): the other threads may be blocked in a
// collective.
class Watch {
 public:
  Watch(StoreHandle store, int64_t rank, int64_t world, WatchOptions options);  // `store`: a connection for this thread alone
  ~Watch() { end(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // All ranks have made their Watch: from now on their processes are watched and their heartbeats compared.
  void all_joined() { joined_ = true; }

  void end();  // ends the thread, and with it this rank's heartbeats

  static std::string alive_key(int64_t rank);    // the key of a rank's heartbeats
  static std::string process_key(int64_t rank);  // the key of SiblingProcesses::own_description()
  static constexpr const char* kDone = "done";   // its value when the rank has done its work, so that its silence means nothing

 private:
  void run();
  void beat();
  void compare_heartbeats();
  void watch_processes();
  [[noreturn]] static void exit_because(const std::string& reason);
  [[noreturn]] void stop_all_because(const std::string& reason);

  const StoreHandle store_;
  const int64_t rank_, world_;
  const WatchOptions options_;
  std::atomic<bool> joined_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;  // guarded by mutex_
  struct Heartbeat {
    std::string value;
    std::chrono::steady_clock::time_point changed;
  };
  std::vector<Heartbeat> heartbeats_;  // one for each rank
  std::optional<SiblingProcesses> processes_;
  std::thread thread_;
};

}  // namespace based
