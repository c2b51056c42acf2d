// Handling of Ctrl-C (SIGINT), SIGTERM and SIGHUP. The first signal asks a long command to stop at the next safe point; a second one exits
// at once with status 130. A SIGHUP that follows another signal does not: terminals and service managers send it on their own. A command
// with a time limit stops at the same safe points.
#pragma once

namespace based {

bool interrupted();      // whether a signal arrived, or the time limit passed, since the outermost scope began
int interrupt_signal();  // SIGINT, SIGTERM or SIGHUP; 0 for none

// Sets a time limit from now on, until the outermost scope ends.
void interrupt_after(double seconds);

// Handles the signals during its lifetime. Signals that were ignored before (nohup, background jobs) stay ignored. Scopes may be nested;
// only the outermost has an effect. Loops inside poll interrupted().
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

}  // namespace based
