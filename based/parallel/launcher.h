// Starts the ranks of a job on this host, watches them, and ends all of them when one fails.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace based {

struct LaunchOptions {
  int64_t ranks = 1;
  std::string log_folder;                 // is created if it is absent; gets rank-N.log, to which each run appends
  std::vector<std::string> command = {};  // a program's path and its arguments; empty: this program with its own arguments
  std::chrono::milliseconds grace = std::chrono::seconds(5);          // from SIGTERM to SIGKILL after a failure
  std::chrono::milliseconds stop_patience = std::chrono::minutes(2);  // for all ranks to end after the first one did at a signal
};

// Runs the command once for each rank, with the variables that torchrun sets, until all have ended. The ranks' messages go to rank-N.log;
// those of rank 0 also go to stderr, and its results to stdout. This process serves the job's store, on a port of the loopback interface,
// and never uses a GPU. If it ends in any way, the kernel kills the ranks. Returns the exit code for this process:
// - 0 if all ranks returned 0.
// - If a rank returns another code or is killed: its code if that is 2, else 1. The first such rank, its code or signal and the last line
// of its
//   log are logged as an error. The others get SIGTERM and, after `grace`, SIGKILL.
// - After SIGINT, SIGTERM or SIGHUP, which is passed on once to every rank: the highest of the ranks' codes, 1 for a rank that the signal
// killed.
//   A second signal ends this process with 130, and with it the ranks.
// Throws Error if the log files or the processes cannot be created. Call it from the main thread, before the first use of a GPU.
int launch_ranks(const LaunchOptions& options);

}  // namespace based
