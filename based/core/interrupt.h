// Ctrl-C and SIGTERM: the first asks a long command to stop at the next good moment, the second ends the program at once with 130.
#pragma once

namespace based {

bool interrupted();      // a signal came since the outermost scope began
int interrupt_signal();  // which one (SIGINT, SIGTERM), 0 for none

// Handles the signals as long as it lives; may be nested, the outermost counts. Loops inside poll interrupted().
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

}  // namespace based
