// How long threads that wait for each other in a parallel loop spin before they sleep.
//
// libgomp lets them spin for milliseconds. Alone, that is fast. Where another program keeps a core busy, two threads of a loop may share
// the other one, and then each spins away the time in which the other could do what it waits for: up to a hundred times slower.
// How long is read from the environment before main, and cannot be set later. But with more OpenMP threads than cores libgomp spins
// briefly (its manual, GOMP_SPINCOUNT), so idle threads are added while the process has to wait for cores.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

namespace based::kernels::cpu {

// Whether the process has cores enough, from how long its threads waited for one.
class Crowding {
 public:
  // `share`: seconds that its threads waited, together, in a second. Two high shares in a row make it crowded, ten low ones end that.
  bool update(double share);

 private:
  static constexpr double kHigh = 0.25;  // alone it is 0.01, beside one busy program 0.5 and more
  static constexpr int kToBegin = 2, kToEnd = 10;
  bool crowded_ = false;
  int against_ = 0;  // shares in a row that speak for the other answer
};

// Nanoseconds for which threads of this process, without the calling one, could have run and had no core, since each began; nothing where
// the system does not tell.
std::optional<int64_t> nanoseconds_without_core();

// Whether so many threads can be started now, beside those that there are. libgomp ends the program where it cannot start its own.
bool can_start_threads(int count);

// While `on`, libgomp has more threads than there are cores. One thread makes all calls for itself.
void add_idle_threads(bool on);

// While one lives, a thread looks every 20 ms and adds or removes idle threads. None does where OMP_WAIT_POLICY or GOMP_SPINCOUNT is set,
// the address space is limited, the system tells nothing, no thread can be started, or the build has no OpenMP. For programs: at the start
// of main, once.
class CrowdingWatch {
 public:
  static constexpr const char* kThreadName = "crowding watch";

  CrowdingWatch();
  ~CrowdingWatch();
  CrowdingWatch(const CrowdingWatch&) = delete;
  CrowdingWatch& operator=(const CrowdingWatch&) = delete;

 private:
  void watch();
  bool ends_within(int64_t nanoseconds);

  std::mutex mutex_;
  std::condition_variable change_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace based::kernels::cpu
