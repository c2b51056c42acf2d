// One process that launch_ranks starts, and its log.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "based/parallel/environment.h"

namespace based {

// `log_folder`/rank-N.log, for the messages of a rank.
std::string rank_log_path(const std::string& log_folder, int64_t rank);

class RankProcess {
 public:
  // Appends to rank_log_path(). Throws Error if that cannot be opened.
  RankProcess(int64_t rank, const std::string& log_folder);
  // Kills the process and its children, and reaps it.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Starts `program` in a process group of its own, so that a terminal's Ctrl-C reaches the ranks through the launcher only. The kernel
  // kills the process when the thread that called start() ends. Returns when the program runs; throws Error if it cannot be started.
  void start(const std::string& program, const std::vector<std::string>& arguments, const Variables& variables);

  int64_t rank() const { return rank_; }
  bool running() const { return pid_ > 0 && !status_; }
  bool reap();              // whether the process ended since the last call; does not block
  void send(int signal);    // to the process and its children
  void forward_messages();  // copies messages of rank 0 that have arrived to its log and to stderr

  // Valid after the end:
  int status() const { return *status_; }  // as waitpid() returns it
  int exit_code() const;                   // −1 for a process that a signal killed
  std::string end() const;                 // "ended with exit code 3", "was killed by signal 9 (Killed)"
  std::string last_line() const;           // the last message since start(); "" if there are none
  const std::string& log_path() const { return log_path_; }

  int messages() const { return messages_; }  // descriptor to poll for messages of rank 0, else −1

 private:
  [[noreturn]] void become(const char* program, char* const* arguments, char* const* variables, const int* descriptors, pid_t parent) const;

  const int64_t rank_;
  const std::string log_path_;
  int log_ = -1, messages_ = -1;
  off_t log_start_ = 0;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

}  // namespace based
