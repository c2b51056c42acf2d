#include "based/core/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>

namespace based {
namespace {

constexpr int kExitCode = 130;  // 128 + SIGINT, the convention of shells
std::atomic<int> caught{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

int depth = 0;
constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
std::array<struct sigaction, kSignals.size()> before;

void on_signal(int signal) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, signal) && signal != SIGHUP) _exit(kExitCode);
}

}  // namespace

bool interrupted() { return caught.load(std::memory_order_relaxed) != 0; }
int interrupt_signal() { return caught.load(std::memory_order_relaxed); }

InterruptScope::InterruptScope() {
  if (depth++ > 0) return;
  caught = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART, so that a blocking read returns too
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    if (before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  if (--depth > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

}  // namespace based
