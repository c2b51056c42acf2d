#include "based/kernels/common/cpu/contention.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace based::kernels::cpu {
namespace {

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

#ifdef _OPENMP
// Number of idle threads. With the calling one there are then more threads than cores.
int idle_threads() { return omp_get_num_procs(); }

// Idle threads need address space; where it is limited, it is left to the work.
bool has_address_space() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
}

bool is_wanted() {
  return has_address_space() && std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr &&
         nanoseconds_without_core().has_value();
}
#else
int idle_threads() { return 0; }
bool is_wanted() { return false; }
#endif

}  // namespace

bool CpuContention::update(double share) {
  opposite_ = (share > kHigh) == contended_ ? 0 : opposite_ + 1;
  if (opposite_ >= (contended_ ? kEndCount : kBeginCount)) contended_ = !contended_, opposite_ = 0;
  return contended_;
}

std::optional<int64_t> nanoseconds_without_core() {
  std::error_code error;
  const std::string self = std::to_string(gettid());
  std::optional<int64_t> sum;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end; at.increment(error)) {
    int64_t running = 0, waiting = 0;  // this thread's times in nanoseconds, see schedstat in proc(5)
    if (!(std::ifstream(at->path() / "schedstat") >> running >> waiting)) continue;  // the thread has ended
    sum = sum.value_or(0) + (at->path().filename() == self ? 0 : waiting);
  }
  return sum;
}

bool can_start_threads(int count) {
  std::vector<std::thread> started;
  std::atomic<bool> ending{false};
  bool all = true;
  try {
    for (int i = 0; i < count; ++i) started.emplace_back([&ending] { ending.wait(false); });
  } catch (const std::system_error&) {
    all = false;
  }
  ending = true;
  ending.notify_all();
  for (std::thread& thread : started) thread.join();
  return all;
}

void add_idle_threads([[maybe_unused]] bool on) {
#ifdef _OPENMP
  if (on) {
#pragma omp parallel num_threads(idle_threads() + 1)
    asm volatile("");  // keeps the compiler from removing the empty region
  } else {
    omp_pause_resource(omp_pause_soft, omp_get_initial_device());  // ends the idle threads of the calling thread
  }
#endif
}

ContentionMonitor::ContentionMonitor() {
  if (!is_wanted()) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's own threads handle signals
  try {
    thread_ = std::thread([this] {
      try {
        run();
      } catch (const std::bad_alloc&) {  // the program continues without the monitor
      }
    });
    pthread_setname_np(thread_.native_handle(), kThreadName);
  } catch (const std::system_error&) {  // no thread can be started; the program continues without the monitor
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ContentionMonitor::~ContentionMonitor() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  change_.notify_one();
  thread_.join();
}

bool ContentionMonitor::ends_within(int64_t nanoseconds) {
  std::unique_lock lock(mutex_);
  return change_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), [this] { return ending_; });
}

void ContentionMonitor::run() {
  constexpr int64_t kPause = 20'000'000, kMinPauseRatio = 100;  // a pause is at least this multiple of the duration of a check
  CpuContention contention;
  bool contended = false;
  int64_t at = now(), waited = nanoseconds_without_core().value_or(0), pause = kPause;
  while (!ends_within(pause)) {
    const int64_t begin = now(), total = nanoseconds_without_core().value_or(0);
    const bool is_contended = contention.update(static_cast<double>(total - waited) / static_cast<double>(begin - at));
    if (is_contended && !contended && !can_start_threads(idle_threads())) return;  // libgomp would end the program
    if (is_contended != contended) add_idle_threads(is_contended);
    contended = is_contended, at = begin, waited = total, pause = std::max(kPause, kMinPauseRatio * (now() - begin));
  }
  if (contended) add_idle_threads(false);
}

}  // namespace based::kernels::cpu
