// Ctrl-C, SIGTERM and SIGHUP: the first asks a long command to stop at the next good moment, a second one ends the program at once with
// 130. A second SIGHUP does not: terminals and service managers send it behind another signal of their own accord.
#pragma once

namespace based {

bool interrupted();      // a signal came since the outermost scope began
int interrupt_signal();  // which one (SIGINT, SIGTERM, SIGHUP), 0 for none

// Handles the signals as long as it lives, but those that were ignored before (nohup, jobs in the background) stay ignored. May be nested,
// the outermost counts. Loops inside poll interrupted().
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

}  // namespace based
