#include "based/parallel/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "based/core/descriptors.h"
#include "based/core/error.h"
#include "based/core/progress.h"
#include "based/core/text.h"

namespace based {
namespace {

constexpr off_t kTailBytes = 64 << 10;

[[noreturn]] void start_failed(int64_t rank, const std::string& what, int error_number) {
  throw Error("cannot start rank " + std::to_string(rank) + ": " + what + ": " + system_message(error_number));
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// A pipe whose ends are closed at exec and by the destructor.
struct Pipe {
  explicit Pipe(int64_t rank) {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) start_failed(rank, "pipe", errno);
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(size_t end) {
    if (ends[end] >= 0) close(ends[end]);
    ends[end] = -1;
  }
  std::array<int, 2> ends{-1, -1};  // to read from, to write to
};

}  // namespace

std::string rank_log_path(const std::string& log_folder, int64_t rank) { return log_folder + "/rank-" + std::to_string(rank) + ".log"; }

RankProcess::RankProcess(int64_t rank, const std::string& log_folder) : rank_(rank), log_path_(rank_log_path(log_folder, rank)) {
  log_ = open(log_path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (log_ < 0) throw Error(log_path_ + ": cannot be written: " + system_message(errno));
  struct stat info {};
  if (fstat(log_, &info) == 0) log_start_ = info.st_size;
}

RankProcess::~RankProcess() {
  if (pid_ > 0) kill(-pid_, SIGKILL);  // also children that outlive the process itself
  if (running()) waitpid(pid_, nullptr, 0);
  if (messages_ >= 0) close(messages_);
  close(log_);
}

void RankProcess::start(const std::string& program, const std::vector<std::string>& arguments, const Variables& variables) {
  std::vector<std::string> argument_texts = arguments, variable_texts;
  variable_texts.reserve(variables.size());
  for (const auto& [name, value] : variables) variable_texts.push_back(name + "=" + value);
  const std::vector<char*> argument_list = pointers(argument_texts), variable_list = pointers(variable_texts);

  Pipe failure(rank_), messages(rank_);
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0) start_failed(rank_, "/dev/null", errno);
  // Rank 0 keeps this process' standard output, for the results.
  const std::array<int, 4> descriptors{input, rank_ == 0 ? STDOUT_FILENO : log_, rank_ == 0 ? messages.ends[1] : log_, failure.ends[1]};
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(program.c_str(), argument_list.data(), variable_list.data(), descriptors.data(), parent);
  const int fork_error = errno;
  close(input);
  if (pid_ < 0) start_failed(rank_, "fork", fork_error);

  failure.close_end(1);
  messages.close_end(1);
  int exec_error = 0;
  ssize_t count = 0;
  do count = read(failure.ends[0], &exec_error, sizeof exec_error);  // 0 bytes at exec, which closes the pipe
  while (count < 0 && errno == EINTR);
  if (count == sizeof exec_error) start_failed(rank_, program, exec_error);
  if (rank_ != 0) return;
  std::swap(messages_, messages.ends[0]);
  fcntl(messages_, F_SETFL, O_NONBLOCK);
}

// Runs in the new process, which has one thread and a copy of locks that other threads may hold: it calls async-signal-safe functions only.
void RankProcess::become(const char* program, char* const* arguments, char* const* variables, const int* descriptors, pid_t parent) const {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it ended before the call of prctl
  for (int standard = 0; standard < 3; ++standard)
    if (descriptors[standard] != standard) dup2(descriptors[standard], standard);
  execve(program, arguments, variables);
  const int error = errno;
  static_cast<void>(!write(descriptors[3], &error, sizeof error));
  _exit(127);
}

bool RankProcess::reap() {
  int status = 0;
  if (!running() || waitpid(pid_, &status, WNOHANG) != pid_) return false;
  status_ = status;
  return true;
}

void RankProcess::send(int signal) {
  if (running()) kill(-pid_, signal);
}

void RankProcess::forward_messages() {
  if (messages_ < 0) return;
  std::array<char, 16384> bytes{};
  ssize_t count = 0;
  while ((count = read(messages_, bytes.data(), bytes.size())) > 0) {
    const std::string_view text(bytes.data(), static_cast<size_t>(count));
    static_cast<void>(write_all(log_, text));  // a full disk must not end the rank
    write_above_progress(text);
  }
  if (count == 0) close(std::exchange(messages_, -1));  // no process writes to it any more
}

int RankProcess::exit_code() const { return WIFEXITED(*status_) ? WEXITSTATUS(*status_) : -1; }

std::string RankProcess::end() const {
  if (WIFEXITED(*status_)) return "ended with exit code " + std::to_string(exit_code());
  const int signal = WTERMSIG(*status_);
  return "was killed by signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

std::string RankProcess::last_line() const {
  struct stat info {};
  if (fstat(log_, &info) != 0) return "";
  const off_t first = std::max(log_start_, info.st_size - kTailBytes);
  if (first >= info.st_size) return "";
  std::string tail(static_cast<size_t>(info.st_size - first), '\0');
  const ssize_t count = pread(log_, tail.data(), tail.size(), first);
  tail.resize(count > 0 ? static_cast<size_t>(count) : 0);
  const size_t end = tail.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "";
  tail.resize(end + 1);
  return tail.substr(tail.find_last_of("\r\n") + 1);  // find_last_of gives npos, −1, if there is one line
}

}  // namespace based
