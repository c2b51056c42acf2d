// Shortens the spinning of OpenMP threads while other programs compete for the cores.
//
// Threads that wait for each other in a parallel loop spin before they sleep; in libgomp for milliseconds, which is fast on an idle
// machine. Where another program keeps a core busy, two threads of a loop may share a core, and then each spins through the time slices in
// which the other one could make progress: loops become up to a hundred times slower. libgomp reads the spin time from the environment
// before main, and it cannot be changed later. But with more OpenMP threads than cores libgomp spins only briefly (its manual,
// GOMP_SPINCOUNT), so idle threads are added while the process has to wait for cores.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

namespace based::kernels::cpu {

// Decides from the time that the process's threads wait for a core whether there is contention.
class CpuContention {
 public:
  // `share`: seconds that all threads together waited in a second. Contention begins with two high shares in a row and ends with ten low
  // ones. Returns whether there is contention.
  bool update(double share);

 private:
  static constexpr double kHigh = 0.25;  // 0.01 on an idle machine, 0.5 and more beside one busy program
  static constexpr int kBeginCount = 2, kEndCount = 10;
  bool contended_ = false;
  int opposite_ = 0;  // shares in a row that indicate the opposite of contended_
};

// Nanoseconds, since the start of each thread, for which the threads of this process other than the calling one were runnable but had no
// core; nullopt where the system does not report it.
std::optional<int64_t> nanoseconds_without_core();

// Whether `count` more threads can be started now. libgomp ends the program where it cannot start a thread.
bool can_start_threads(int count);

// While `on`, libgomp has more threads than there are cores. The idle threads belong to the calling thread, so one thread must make all
// calls.
void add_idle_threads(bool on);

// During the lifetime of a monitor a thread checks for contention every 20 ms and adds or removes idle threads. The thread is not started
// where OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, the address space is limited, the system does not report waiting times, no thread can be
// started, or the build has no OpenMP. A program should create one monitor at the start of main.
class ContentionMonitor {
 public:
  static constexpr const char* kThreadName = "cpu contention";

  ContentionMonitor();
  ~ContentionMonitor();
  ContentionMonitor(const ContentionMonitor&) = delete;
  ContentionMonitor& operator=(const ContentionMonitor&) = delete;

 private:
  void run();
  bool ends_within(int64_t nanoseconds);

  std::mutex mutex_;
  std::condition_variable change_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace based::kernels::cpu
