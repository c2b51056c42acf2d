#include "based/core/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <limits>

namespace based {
namespace {

constexpr int kExitCode = 130;  // 128 + SIGINT, the convention of shells
std::atomic<int> caught{0};
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
std::atomic<double> stop_time{kNoLimit};  // on the clock of steady_seconds()
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

std::atomic<int> scope_count{0};
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kSignals.size()> previous_actions;

double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void on_signal(int signal) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, signal) && signal != SIGHUP) _exit(kExitCode);
}

}  // namespace

bool interrupted() { return caught.load(std::memory_order_relaxed) != 0 || steady_seconds() >= stop_time.load(std::memory_order_relaxed); }
int interrupt_signal() { return caught.load(std::memory_order_relaxed); }

void interrupt_after(double seconds) { stop_time = steady_seconds() + seconds; }

InterruptScope::InterruptScope() {
  if (scope_count++ > 0) return;
  caught = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART, so that a blocking read returns too
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &previous_actions[i]);
    if (previous_actions[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  if (--scope_count > 0) return;
  stop_time = kNoLimit;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_actions[i], nullptr);
}

}  // namespace based
