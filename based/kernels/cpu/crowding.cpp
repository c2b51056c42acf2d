#include "based/kernels/cpu/crowding.h"

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

// Beside the calling one; then there are more threads than cores.
int idle_threads() {
#ifdef _OPENMP
  return omp_get_num_procs();
#else
  return 0;
#endif
}

// Idle threads take address space; where that is limited, it is wanted for the work.
bool has_address_space() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
}

bool is_wanted() {
#ifdef _OPENMP
  return has_address_space() && std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr &&
         nanoseconds_without_core().has_value();
#else
  return false;
#endif
}

}  // namespace

bool Crowding::update(double share) {
  against_ = (share > kHigh) == crowded_ ? 0 : against_ + 1;
  if (against_ >= (crowded_ ? kToEnd : kToBegin)) crowded_ = !crowded_, against_ = 0;
  return crowded_;
}

std::optional<int64_t> nanoseconds_without_core() {
  std::error_code error;
  const std::string self = std::to_string(gettid());
  std::optional<int64_t> sum;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end; at.increment(error)) {
    int64_t running = 0, waiting = 0;                                                // schedstat(5): of this thread
    if (!(std::ifstream(at->path() / "schedstat") >> running >> waiting)) continue;  // it has ended
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
    asm volatile("");  // an empty loop would be left out
  } else {
    omp_pause_resource(omp_pause_soft, omp_get_initial_device());  // those of the calling thread
  }
#endif
}

CrowdingWatch::CrowdingWatch() {
  if (!is_wanted()) return;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  try {
    thread_ = std::thread([this] {
      try {
        watch();
      } catch (const std::bad_alloc&) {  // the work continues without it
      }
    });
    pthread_setname_np(thread_.native_handle(), kThreadName);
  } catch (const std::system_error&) {  // no thread can be started, and none is needed
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CrowdingWatch::~CrowdingWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  change_.notify_one();
  thread_.join();
}

bool CrowdingWatch::ends_within(int64_t nanoseconds) {
  std::unique_lock lock(mutex_);
  return change_.wait_for(lock, std::chrono::nanoseconds(nanoseconds), [this] { return ending_; });
}

void CrowdingWatch::watch() {
  constexpr int64_t kPause = 20'000'000, kMostOverhead = 100;  // a look takes at most one part in so many
  Crowding crowding;
  bool crowded = false;
  int64_t at = now(), waited = nanoseconds_without_core().value_or(0), pause = kPause;
  while (!ends_within(pause)) {
    const int64_t begin = now(), total = nanoseconds_without_core().value_or(0);
    const bool is_crowded = crowding.update(static_cast<double>(total - waited) / static_cast<double>(begin - at));
    if (is_crowded && !crowded && !can_start_threads(idle_threads())) return;  // libgomp would end the program
    if (is_crowded != crowded) add_idle_threads(is_crowded);
    crowded = is_crowded, at = begin, waited = total, pause = std::max(kPause, kMostOverhead * (now() - begin));
  }
  if (crowded) add_idle_threads(false);
}

}  // namespace based::kernels::cpu
