#include "based/core/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace based {
namespace {

constexpr int kExitCode = 130;  // 128 + SIGINT, by custom of shells
std::atomic<int> caught{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

int depth = 0;
struct sigaction before_int, before_term;

void on_signal(int signal) {
  int none = 0;
  if (!caught.compare_exchange_strong(none, signal)) _exit(kExitCode);
}

}  // namespace

bool interrupted() { return caught.load(std::memory_order_relaxed) != 0; }
int interrupt_signal() { return caught.load(std::memory_order_relaxed); }

InterruptScope::InterruptScope() {
  if (depth++ > 0) return;
  caught = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;  // without SA_RESTART: a read from the terminal ends too
  sigaction(SIGINT, &action, &before_int);
  sigaction(SIGTERM, &action, &before_term);
}

InterruptScope::~InterruptScope() {
  if (--depth > 0) return;
  sigaction(SIGINT, &before_int, nullptr);
  sigaction(SIGTERM, &before_term, nullptr);
}

}  // namespace based
