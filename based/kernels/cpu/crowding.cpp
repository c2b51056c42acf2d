#include "based/kernels/cpu/crowding.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace based::kernels::cpu {
namespace {

int64_t now() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool is_wanted() {
#ifdef _OPENMP
  return std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr && nanoseconds_without_core().has_value();
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
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", error)) {
    int64_t running = 0, waiting = 0;                                                   // schedstat(5): of this thread
    if (!(std::ifstream(thread.path() / "schedstat") >> running >> waiting)) continue;  // it has ended
    sum = sum.value_or(0) + (thread.path().filename() == self ? 0 : waiting);
  }
  return sum;
}

void add_idle_threads([[maybe_unused]] bool on) {
#ifdef _OPENMP
  if (on) {
#pragma omp parallel num_threads(omp_get_num_procs() + 1)
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
  thread_ = std::thread([this] { watch(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), kThreadName);
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
    if (is_crowded != crowded) add_idle_threads(is_crowded);
    crowded = is_crowded, at = begin, waited = total, pause = std::max(kPause, kMostOverhead * (now() - begin));
  }
  if (crowded) add_idle_threads(false);
}

}  // namespace based::kernels::cpu
